"""Comparison of runs: effective sample sizes, costs, and distances from a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mhrun.diagnostics.distances import Shifts, energy_distance, own_error, shifts
from mhrun.diagnostics.grid import number_of
from mhrun.diagnostics.growth import Growth, growth
from mhrun.errors import UserError
from mhrun.report.comparison.agreement import AGREES, ANOTHER, REFERENCE, RELEVANT, UNKNOWN, judge
from mhrun.report.comparison.draws import ComparedDraws, compared_draws
from mhrun.report.comparison.notes import (
    Mentioned,
    better,
    by_reason,
    doubts,
    mentioned,
    small_errors,
    some_of,
    tempered,
)
from mhrun.report.comparison.rows import Row, names_of_parameters, run_names, target_notes, undamaged, unlike
from mhrun.report.convergence import convergence_warnings, single_chain_warnings
from mhrun.report.efficiency import columns_of, efficiency, worth
from mhrun.report.run import Run
from mhrun.report.tables import shown
from mhrun.store.identity import departures


class Comparison(NamedTuple):
    """The result of a comparison."""

    rows: dict[str, dict[str, Any]]  # name -> key of COLUMNS and DISTANCES -> number
    runs: dict[str, dict[str, Any]]  # name of the run -> its description
    notes: list[str]
    reference: str | None
    rule: str = ""  # of the verdicts, if there is a reference
    precision: float = RELEVANT  # of the verdicts, in sd
    growth: Mapping[str, Growth] = {}  # name -> errors while its chains grow, if there is a reference
    # Of the reference, see `mhrun.diagnostics.distances.own_error`
    own_error: tuple[float, float] | None = None
    labels: Mapping[str, str] = {}  # name -> label of the method, for figures


def compare(
    rows: Sequence[Row],
    reference: Row | None = None,
    tolerance: float | None = None,
    evaluations: float | None = None,
) -> Comparison:
    """Compute all numbers of a comparison.

    Args:
        rows: the methods.
        reference: what they are compared with, with all of its draws.
        tolerance: difference from it that does not matter, see `agreement`.
        evaluations: use of each method only the first draws, which cost so many evaluations; None: all draws.

    Raises:
        UserError: the rows have different models: the names of parameters differ.
    """
    notes = target_notes([*rows, *([reference] if reference else [])])
    draws = compared_draws(rows, reference, evaluations)
    notes += draws.notes
    records = _records(rows, draws)
    notes += by_reason(draws.missing)
    found = _Distances() if reference is None else _against(reference, rows, draws, records, tolerance)
    notes += found.notes
    precision = RELEVANT if tolerance is None else tolerance
    notes += convergence_warnings(
        records, except_rhats=found.mentioned.rhats, except_sizes=found.mentioned.sizes
    )
    notes += single_chain_warnings(
        [name for name, of_method in draws.available.items() if len(of_method) == 1]
    )
    notes += tempered(rows, reference) + small_errors(records, rows, precision)
    notes += some_of(rows) if draws.coordinates is None else []
    names = run_names([row.run.folder for row in rows])
    first = rows[0].run
    runs = {
        names[row.run.folder.path]: _description(row.run, None if row.run is first else first) for row in rows
    }
    name = reference.name if reference else None
    labels = {row.name: f"{row.name.removesuffix(row.method)}{row.run.label(row.method)}" for row in rows}
    return Comparison(
        records, runs, notes, name, found.rule, precision, found.growth, found.own_error, labels
    )


def _records(rows: Sequence[Row], draws: ComparedDraws) -> dict[str, dict[str, Any]]:
    """Return the numbers of each method that need no reference."""
    records: dict[str, dict[str, Any]] = {}
    for row in rows:
        name, share = row.name, draws.shares[row.name]
        record = undamaged(row, partial(efficiency, row.run, row.method, draws.available.get(name), share))
        record["target"] = row.run.describe_kind(row.method)
        if name in draws.thinned:  # the effective sample size is that of some of the draws: a lower bound
            record |= {"ess_per_million": None, "ess_per_second": None}
        if (count := draws.counts.get(name)) is not None:
            record["draws"] = int(share * count + 1e-9)
        records[name] = record
    return records


class _Distances(NamedTuple):
    """What a reference shows, beside the columns of `DISTANCES`."""

    notes: Sequence[str] = ()
    rule: str = ""
    growth: Mapping[str, Growth] = {}
    own_error: tuple[float, float] | None = None
    mentioned: Mentioned = Mentioned(set(), set())


def _against(
    reference: Row,
    rows: Sequence[Row],
    draws: ComparedDraws,
    records: dict[str, dict[str, Any]],
    tolerance: float | None,
) -> _Distances:
    """Add the distances and the verdict of each method to its record.

    Raises:
        UserError: the reference has no valid draws.
    """
    if (reason := draws.missing.get(reference.name)) is not None:
        raise UserError(f"{reference.name} is not a reference: {reason}")
    base = draws.available[reference.name]
    of_reference: Mapping[str, Any] = records.get(reference.name) or worth(base)
    compared = [row.name for row in rows if row.name != reference.name and row.name not in draws.missing]
    shifts_by_name = {name: shifts(draws.available[name], base) for name in compared}
    for name, shift in shifts_by_name.items():
        records[name] |= _distances(shift, draws.available[name], base)
    curves = {name: growth(draws.available[name], base) for name in compared}
    lines, rule = _judge(records, rows, reference, shifts_by_name, of_reference, tolerance, draws.coordinates)
    doubts_of_it = doubts(reference.name, number_of(of_reference["rhat"]), better(records, reference.name))
    return _Distances(
        [*lines, *doubts_of_it],
        rule,
        curves,
        own_error(base) if curves else None,
        mentioned(records, reference.name, bool(doubts_of_it)),
    )


def _judge(
    records: dict[str, dict[str, Any]],
    rows: Sequence[Row],
    reference: Row,
    shifts_by_name: Mapping[str, Shifts],
    reference_record: Mapping[str, Any],
    tolerance: float | None,
    names: Sequence[str] | None,
) -> tuple[list[str], str]:
    """Add the key ``verdict`` to each row, and return a line on each method that does not agree, and the rule."""
    width = len(next(iter(shifts_by_name.values())).mean) if shifts_by_name else 0
    if names is None and width:
        all_names = np.array(names_of_parameters(reference))
        columns = columns_of(reference.run, reference.method, len(all_names), width)
        names = [str(name) for name in all_names[columns]]
    other_targets = {row.name: _another(reference, row) for row in rows if row.name in shifts_by_name}
    verdicts = judge(
        shifts_by_name, names or [], records, reference.name, reference_record, other_targets, tolerance
    )
    reasons: dict[str, str] = {}
    for name, row in records.items():
        if name == reference.name:
            row["verdict"], row["verdict_reason"] = REFERENCE, ""
            continue
        verdict, why = verdicts.by_method.get(name, (UNKNOWN, "no draws"))
        row["verdict"], row["verdict_reason"] = verdict, why
        if verdict != AGREES:
            reasons[name] = f"{verdict}{' than that of the reference' * (verdict == ANOTHER)}: {why}."
    return by_reason(reasons), verdicts.rule if shifts_by_name else ""


def _another(reference: Row, row: Row) -> list[str]:
    """Return what makes the target of a row another than the reference's, a few words each."""
    temperature, base = (r.run.samples(r.method).temperature for r in (row, reference))
    parts = [part for part in unlike(reference, row) if part != "temperature"]
    return ([f"T = {shown(temperature)} (reference: {shown(base)})"] if temperature != base else []) + [
        f"another {part}" for part in parts
    ]


def _distances(
    shift: Shifts, draws: npt.NDArray[np.float64], reference: npt.NDArray[np.float64]
) -> dict[str, Any]:
    mean, spread = shift.worst()
    return {"mean_off": mean, "sd_ratio": spread, "energy_distance": energy_distance(draws, reference)}


def _description(run: Run, first: Run | None) -> dict[str, Any]:
    differs = [] if first is None else departures(run.config, first.config)
    if first is not None and run.config["seed"] != first.config["seed"]:
        differs.append(f"seed = {run.config['seed']}")
    return {
        "folder": str(run.folder.path),
        "scale": run.config["scale"],
        "seed": run.config["seed"],
        "unlike the first": "; ".join(line.replace("(paper:", "(first:") for line in differs) or "–",
    }
