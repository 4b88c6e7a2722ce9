"""Comparison of runs: effective sample sizes, costs, and distances from a reference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mhrun.diagnostics.chains import LEAST_DRAWS
from mhrun.diagnostics.distances import Shifts, energy_distance, own_error, shifts
from mhrun.diagnostics.growth import Growth, growth
from mhrun.errors import UserError
from mhrun.kernels.stationary import APPROXIMATE, DECLARED, EXACT
from mhrun.report.agreement import (
    AGREES,
    ANOTHER,
    DIFFERS_SHORT,
    REFERENCE,
    RELEVANT,
    UNKNOWN,
    judge,
)
from mhrun.report.compared_rows import Row, names_of_parameters, run_names, target_notes, undamaged, unlike
from mhrun.report.convergence import convergence_warnings, number_of
from mhrun.report.efficiency import (
    COORDINATES,
    ESS,
    RHAT,
    Draws,
    columns_of,
    costs,
    efficiency,
    is_apart,
    named,
    predicted,
    valid_draws,
    worth,
)
from mhrun.report.run import Run
from mhrun.report.tables import shown
from mhrun.store.identity import departures
from mhrun.target.function_space import Predictions, that_vary

MIXED = 1.1
"""R-hat of a reference above which distances from it measure nothing."""


class Comparison(NamedTuple):
    """The result of a comparison."""

    rows: dict[str, dict[str, Any]]  # name -> key of COLUMNS and DISTANCES -> number
    runs: dict[str, dict[str, Any]]  # name of the run -> its description
    notes: list[str]
    reference: str | None
    rule: str = ""  # of the verdicts, if there is a reference
    precision: float = RELEVANT  # of the verdicts, in sd
    growth: Mapping[str, Growth] = {}  # name -> errors while its chains grow, if there is a reference
    own_error: tuple[float, float] | None = (
        None  # of the reference, see `mhrun.diagnostics.distances.own_error`
    )
    labels: Mapping[str, str] = {}  # name -> label of the method, for figures


def least_evaluations(rows: Sequence[Row], reference: Row | None) -> float:
    """Return the evaluations after burn-in of the method with draws that has the least, the reference aside."""
    found = [
        costs(row.run, row.method)["evaluations"]
        for row in rows
        if row.run.methods[row.method]["thin"] is not None
        and (reference is None or row.name != reference.name)
    ]
    return min(found, default=0.0)


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
    rule, mentioned = "", _Mentioned(set(), set())
    all_draws: dict[str, Draws | str] = {}
    for row in [*rows, *([reference] if reference else [])]:
        if row.name not in all_draws:
            all_draws[row.name] = undamaged(row, partial(valid_draws, row.run, row.method))
    counts = {name: draws.shape[1] for name, draws in all_draws.items() if not isinstance(draws, str)}
    shares = dict.fromkeys(all_draws, 1.0)
    if evaluations is not None:
        cut = [row for row in rows if reference is None or row.name != reference.name]
        shares |= {row.name: _share(row, evaluations) for row in cut}
        all_draws |= {row.name: _first(all_draws[row.name], shares[row.name], evaluations) for row in cut}
        notes += _at_equal_cost(cut, evaluations, reference)
    coordinates: list[str] | None = None
    thinned: set[str] = set()
    if all(row.run.methods[row.method].get("network") for row in rows):
        found, coordinates, line = _predicted([*rows, *([reference] if reference else [])], all_draws)
        thinned = {name for name, draws in found.items() if len(draws[0]) < len(all_draws[name][0])}
        all_draws |= found
        notes.append(line)
    records: dict[str, dict[str, Any]] = {}
    for row in rows:
        draws = all_draws[row.name]
        valid = None if isinstance(draws, str) else draws
        records[row.name] = undamaged(row, partial(efficiency, row.run, row.method, valid, shares[row.name]))
        records[row.name]["target"] = row.run.kind_in_words(row.method)
        if row.name in thinned:  # the effective sample size is that of some of the draws: a lower bound
            records[row.name] |= {"per_million": None, "per_second": None}
        if (count := counts.get(row.name)) is not None:
            records[row.name]["draws"] = int(shares[row.name] * count + 1e-9)
    notes += _by_reason({name: draws for name, draws in all_draws.items() if isinstance(draws, str)})
    curves: dict[str, Growth] = {}
    error_of_reference: tuple[float, float] | None = None
    if reference is not None:
        reference_draws = all_draws[reference.name]
        if isinstance(reference_draws, str):
            raise UserError(f"{reference.name} is not a reference: {reference_draws}")
        of_reference: Mapping[str, Any] = records.get(reference.name) or worth(reference_draws)
        shifts_by_name: dict[str, Shifts] = {}
        for row in rows:
            draws = all_draws[row.name]
            if row.name != reference.name and not isinstance(draws, str):
                shifts_by_name[row.name] = shifts(draws, reference_draws)
                records[row.name] |= _distances(shifts_by_name[row.name], draws, reference_draws)
                curves[row.name] = growth(draws, reference_draws)
        error_of_reference = own_error(reference_draws) if curves else None
        lines, rule = _judge(records, rows, reference, shifts_by_name, of_reference, tolerance, coordinates)
        doubts = _doubts(reference.name, number_of(of_reference["rhat"]), _better(records, reference.name))
        notes += [*lines, *doubts]
        mentioned = _mentioned(records, reference.name, bool(doubts))
    precision = RELEVANT if tolerance is None else tolerance
    notes += convergence_warnings(records, except_rhats=mentioned.rhats, except_sizes=mentioned.sizes)
    if single := [
        name for name, draws in all_draws.items() if not isinstance(draws, str) and len(draws) == 1
    ]:
        notes.append(
            f"One chain: {', '.join(single)}. R-hat compares its halves, and a mode that it never visited "
            "does not show."
        )
    notes += _tempered(rows, reference) + _small_errors(records, rows, precision)
    width = max((len(run.parameter_names(method)) for run, method, _ in rows), default=0)
    if width > COORDINATES and coordinates is None:
        notes.append(
            f"Of {width:,} coordinates, {COORDINATES} evenly over them are compared; by chance alone the worst of so "
            "many is two to three standard errors off."
        )
    names = run_names([row.run.folder for row in rows])
    first = rows[0].run
    runs = {
        names[row.run.folder.path]: _description(row.run, None if row.run is first else first) for row in rows
    }
    name = reference.name if reference else None
    labels = {row.name: f"{row.name.removesuffix(row.method)}{row.run.label(row.method)}" for row in rows}
    return Comparison(records, runs, notes, name, rule, precision, curves, error_of_reference, labels)


def _share(row: Row, evaluations: float) -> float:
    """Return the share of the draws of a method that so many evaluations pay for."""
    total = costs(row.run, row.method)["evaluations"]
    return min(1.0, evaluations / total) if total else 1.0


def _predicted(
    rows: Sequence[Row], all_draws: Mapping[str, Draws | str]
) -> tuple[dict[str, Draws], list[str] | None, str]:
    """Return predictions of the networks that have draws, a name for each, and a line on what is compared.

    Nothing and None if those of one of them cannot be computed: then weights are compared.
    """
    found: dict[str, Predictions] = {}
    try:
        data = rows[0].run.target_of(rows[0].method).data  # of one for all: others may have other rows
        for row in {row.name: row for row in rows}.values():
            if not isinstance(draws := all_draws[row.name], str):
                found[row.name] = predicted(row.run, row.method, draws, data)
        kept = that_vary(*found.values()) if found else np.arange(0)
    except UserError as error:
        line = f"Weights of networks are compared, which say little: predictions cannot be computed. {error}"
        return {}, None, line
    line = "Networks are compared by what they predict at some of the data, not by their weights."
    names = next(iter(found.values())).names if found else []
    values = {name: of_method.values[..., kept] for name, of_method in found.items()}
    return values, [names[place] for place in kept], line


def _first(draws: Draws | str, share: float, evaluations: float) -> Draws | str:
    """Return the first draws of each chain, this share of them; a line if there are too few."""
    if isinstance(draws, str):
        return draws
    kept = draws[:, : int(share * draws.shape[1] + 1e-9)]
    if kept.shape[1] < LEAST_DRAWS:
        return f"{shown(evaluations)} evaluations are fewer than {LEAST_DRAWS} draws of each chain."
    return kept


def _at_equal_cost(rows: Sequence[Row], evaluations: float, reference: Row | None) -> list[str]:
    """Return lines on what is compared: the first draws of each method, and which methods have cost less."""
    text = f"Each method with the first draws that {shown(evaluations)} evaluations after burn-in pay for"
    lines = [f"{text}, and the reference with all." if reference else f"{text}."]
    least = [row.name for row in rows if _share(row, evaluations) == 1.0]
    if least:
        lines.append(f"All draws of {named(least)}, which cost no more.")
    return lines


def _better(records: Mapping[str, Mapping[str, Any]], reference: str) -> str:
    """Return advice to take the exact method that has converged best as the reference; empty if there is none."""
    rhats = {
        name: number_of(row["rhat"])
        for name, row in records.items()
        if name != reference and row.get("target") in (EXACT, DECLARED) and number_of(row.get("ess")) >= ESS
    }
    rhats = {name: value for name, value in rhats.items() if math.isfinite(value) and not is_apart(value)}
    if not rhats:
        return ""
    best = min(rhats, key=lambda name: (records[name]["target"] == DECLARED, rhats[name]))
    kind = records[best]["target"]
    return f" Take {best} as the reference: it is {kind}, and its R-hat is {rhats[best]:.3f}."


def _doubts(name: str, value: float, advice: str = "") -> list[str]:
    """Return a line on a reference whose chains have not converged, or may not have; `advice` is added."""
    if value > MIXED:
        return [
            f"The reference {name} has R-hat {shown(value)}: its chains have not converged, so that distances from it "
            f"do not measure the other methods. Run it for longer, or choose another reference.{advice}"
        ]
    if is_apart(value):
        return [
            f"The reference {name} has R-hat {shown(value)}, above {RHAT:g}: a part of each distance may be its "
            f"error.{advice}"
        ]
    if math.isnan(value):
        return [f"The reference {name} has no R-hat (one chain, or a coordinate that never moves)."]
    return []


class _Mentioned(NamedTuple):
    """Methods whose R-hat or ESS is in the reasons of the verdicts."""

    rhats: set[str]
    sizes: set[str]


def _mentioned(records: Mapping[str, Mapping[str, Any]], reference: str, has_doubts: bool) -> _Mentioned:
    """Return the methods whose R-hat or ESS is in the reason of a verdict, or in the line on the reference."""
    short = {name for name, row in records.items() if row.get("verdict") in (UNKNOWN, DIFFERS_SHORT)}
    is_said = any("reference: " in records[name]["verdict_reason"] for name in short)
    of_reference = {reference} if is_said else set()
    return _Mentioned(short | of_reference | ({reference} if has_doubts else set()), short | of_reference)


def _tempered(rows: Sequence[Row], reference: Row | None) -> list[str]:
    """Return a line on methods that sample at a temperature above 1, and what that means for distances."""
    temperatures = {row.name: row.run.samples(row.method).temperature for row in rows}
    hot = {name: temperature for name, temperature in temperatures.items() if temperature > 1}
    if not hot:
        return []
    names = ", ".join(f"{name} (T = {shown(temperature)})" for name, temperature in hot.items())
    line = (
        f"Tempered: {names}: the target is at T, not the posterior, with standard deviations up to sqrt(T) "
        "times as large; an ESS there is one for that target."
    )
    if reference is not None and any(
        temperature != temperatures.get(reference.name) for temperature in temperatures.values()
    ):
        line += " Distances between different T measure the temperature too."
    return [line]


def _small_errors(
    records: Mapping[str, Mapping[str, Any]], rows: Sequence[Row], precision: float
) -> list[str]:
    """Return a line on approximate methods that agree: their error may be smaller than what a comparison sees."""
    words = []
    for row in rows:
        if row.run.kind(row.method) == APPROXIMATE and records[row.name].get("verdict") == AGREES:
            expected = row.run.expected_error(row.method)
            words.append(row.name + f" ({expected})" * bool(expected))
    if not words:
        return []
    return [
        f"Approximate, though {'it agrees' if len(words) == 1 else 'they agree'}: {', '.join(words)}. A verdict does "
        f"not see differences far below {precision:g} sd."
    ]


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
        word, why = verdicts.by_method.get(name, (UNKNOWN, "no draws"))
        row["verdict"], row["verdict_reason"] = word, why
        if word != AGREES:
            reasons[name] = f"{word}{' than that of the reference' * (word == ANOTHER)}: {why}."
    return _by_reason(reasons), verdicts.rule if shifts_by_name else ""


def _by_reason(reasons: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, after the names of the methods that have it."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [f"{named(methods)}: {reason}" for reason, methods in names.items()]


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
    return {"mean": mean, "spread": spread, "energy": energy_distance(draws, reference)}


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
