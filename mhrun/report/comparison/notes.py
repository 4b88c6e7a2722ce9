"""Notes on a comparison: doubts about the reference, temperatures, limits of verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mhrun.diagnostics.chains import SETTLED
from mhrun.diagnostics.grid import number_of
from mhrun.kernels.stationary import APPROXIMATE, DECLARED, EXACT
from mhrun.report.comparison.agreement import AGREES, DIFFERS_SHORT, UNKNOWN
from mhrun.report.comparison.rows import Row
from mhrun.report.efficiency import COORDINATES, ESS, RHAT, is_apart, named
from mhrun.report.tables import shown


def better(records: Mapping[str, Mapping[str, Any]], reference: str) -> str:
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


def doubts(name: str, value: float, advice: str = "") -> list[str]:
    """Return a line on a reference whose chains have not converged, or may not have; `advice` is added."""
    if value > SETTLED:
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


class Mentioned(NamedTuple):
    """Methods whose R-hat or ESS is in the reasons of the verdicts."""

    rhats: set[str]
    sizes: set[str]


def mentioned(records: Mapping[str, Mapping[str, Any]], reference: str, has_doubts: bool) -> Mentioned:
    """Return the methods whose R-hat or ESS is in the reason of a verdict, or in the line on the reference."""
    short = {name for name, row in records.items() if row.get("verdict") in (UNKNOWN, DIFFERS_SHORT)}
    has_reason = any("reference: " in records[name]["verdict_reason"] for name in short)
    of_reference = {reference} if has_reason else set()
    return Mentioned(short | of_reference | ({reference} if has_doubts else set()), short | of_reference)


def tempered(rows: Sequence[Row], reference: Row | None) -> list[str]:
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


def small_errors(
    records: Mapping[str, Mapping[str, Any]], rows: Sequence[Row], precision: float
) -> list[str]:
    """Return a line on approximate methods that agree: their error may be smaller than what a comparison sees."""
    texts = []
    for row in rows:
        if row.run.kind(row.method) == APPROXIMATE and records[row.name].get("verdict") == AGREES:
            expected = row.run.expected_error(row.method)
            texts.append(row.name + f" ({expected})" * bool(expected))
    if not texts:
        return []
    return [
        f"Approximate, though {'it agrees' if len(texts) == 1 else 'they agree'}: {', '.join(texts)}. A verdict does "
        f"not see differences far below {precision:g} sd."
    ]


def some_of(rows: Sequence[Row]) -> list[str]:
    """Return a line on how many parameters are compared, if that is not all."""
    width = max((len(run.parameter_names(method)) for run, method, _ in rows), default=0)
    if width <= COORDINATES:
        return []
    return [
        f"Of {width:,} coordinates, {COORDINATES} evenly over them are compared; by chance alone the worst of so "
        "many is two to three standard errors off."
    ]


def by_reason(reasons: Mapping[str, str]) -> list[str]:
    """Return a line for each reason, after the names of the methods that have it."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [f"{named(methods)}: {reason}" for reason, methods in names.items()]
