"""The rows of a comparison: methods of runs, their names, and whether they have one model and one target."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mhrun.errors import UserError, nearest
from mhrun.numbers import is_number
from mhrun.report.efficiency import named
from mhrun.report.run import Run
from mhrun.store.folder import RunFolder
from mhrun.store.identity import parts_of

T = TypeVar("T")


class Row(NamedTuple):
    """A method of a run."""

    run: Run
    method: str
    name: str  # of the method; with several runs, run: method


def rows_of(chosen: Sequence[tuple[RunFolder, str | None]]) -> list[Row]:
    """Return a row for each method of each run, or for the named method.

    With several runs the name of a row begins with that of its run.

    Raises:
        UserError: a run is incomplete, lacks the method, or kept no draws.
    """
    rows: dict[tuple[Path, str], Row] = {}
    names = run_names([folder for folder, _ in chosen])
    several = len({folder.path.resolve() for folder, _ in chosen}) > 1
    for folder, wanted in chosen:
        if (reason := folder.incomplete()) is not None:
            raise UserError(reason)
        run = Run(folder)
        if wanted is not None and wanted not in run.methods:
            has = f"it has {', '.join(run.methods)}.{nearest(wanted, run.methods)}"
            raise UserError(f"{folder.path} has no method '{wanted}'; {has}")
        folder.check_results()
        for method in [wanted] if wanted is not None else run.methods:
            row = Row(run, method, f"{names[folder.path]}: {method}" if several else method)
            rows.setdefault((folder.path.resolve(), method), row)
    if not rows:
        raise UserError("These runs have no methods to compare.")
    return list(rows.values())


def undamaged(row: Row, read: Callable[[], T]) -> T:
    """Return what `read` computes of a trace.

    Raises:
        UserError: an array of the trace cannot be read: HDF5 has its own checksums.
    """
    try:
        return read()
    except OSError as error:
        raise UserError(
            f"{row.name}: its trace is damaged ({type(error).__name__}); recompute it with runtime.force=true."
        ) from error


def run_names(folders: Sequence[RunFolder]) -> dict[Path, str]:
    """Return a name for each run: that of its experiment, with the digest if several runs share it.

    Runs with the same digest, in different folders of outputs, have their paths.
    """
    distinct = {folder.path.resolve(): _run_names(folder) for folder in folders}
    times = Counter(name for choice in distinct.values() for name in choice)
    return {
        folder.path: next(name for name in distinct[folder.path.resolve()] if times[name] == 1)
        for folder in folders
    }


def _run_names(folder: RunFolder) -> tuple[str, ...]:
    """Return the names that a run may have, the shortest first; the last is no other run's."""
    return folder.experiment, f"{folder.experiment}/{folder.digest[:6]}", str(folder.path)


def target_notes(rows: Sequence[Row]) -> list[str]:
    """Return lines on how the targets of the rows differ from the first."""
    rows_with_names = [
        (row, names) for row in rows if (names := undamaged(row, partial(names_of_parameters, row)))
    ]
    for row, names in rows_with_names[1:]:
        first, expected = rows_with_names[0]
        if names != expected:
            raise UserError(
                f"{first.name} is of {_model(first)} with {len(expected):,} parameters and {row.name} of {_model(row)} "
                f"with {len(names):,}, with other names; compare runs of one model."
            )
    first = rows[0]
    alike: dict[str, list[str]] = {}
    for row in {row.name: row for row in rows[1:]}.values():
        if parts := unlike(first, row):
            alike.setdefault(", ".join(parts), []).append(row.name)
    return [
        f"{named(names)}: another {parts} than {first.name}; what {'they sample' if len(names) > 1 else 'it samples'} "
        "differs, not only how."
        for parts, names in alike.items()
    ]


def names_of_parameters(row: Row) -> list[str]:
    """Return a name for each parameter of a method."""
    return row.run.parameter_names(row.method)


def unlike(first: Row, row: Row) -> list[str]:
    """Return which parts that determine the target of a row differ from those of the first."""
    target, reference = _target(first), _target(row)
    return [part for part in target if target[part] != reference[part]]


def _model(row: Row) -> str:
    node = row.run.config["methods"][row.method].get("model") or row.run.config["model"]
    return str(node["_target_"]).rpartition(".")[2]


def _target(row: Row) -> dict[str, str]:
    """Return what determines the target of a row, part by part."""
    node = row.run.config["methods"][row.method]
    parts = parts_of(row.run.config, row.method)
    # Of the target's settings only this one changes its density; the others are of the computation.
    parts["target"] = {"temper": (parts["target"] or {}).get("temper", "posterior")}
    temperatures = [_temperature(s, row.run.rungs(row.method)) for s in node["schedules"].values()]
    # A method without a temperature is at 1.
    parts["temperature"] = [temperature for temperature in temperatures if temperature is not None] or [1.0]
    return {part: json.dumps(setting, sort_keys=True, default=str) for part, setting in parts.items()}


def _temperature(schedule: Mapping[str, Any], rungs: int) -> Any:
    """Return the temperature of the draws that a schedule sets, if it is one number for all chains, else None."""
    setting = schedule.get("temperature")
    # One temperature for each chain; a ladder's draws are those of its coldest rung.
    if isinstance(setting, list) and "at" not in schedule:
        setting = setting[::rungs] if len(set(setting[::rungs])) > 1 else setting[0]
    return float(setting) if is_number(setting) else setting
