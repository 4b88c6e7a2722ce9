"""What the page of a sweep says beside its numbers: a sentence, and the warnings of its runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from mhrun.diagnostics.grid import Estimate
from mhrun.report.declared import measure_of
from mhrun.report.efficiency import ESS, RHAT
from mhrun.report.summary import MARK
from mhrun.report.tables import shown

SHORT = "too short"
"""The column of a sweep's table that marks methods which are too short to judge; tables and figures show `MARK`."""

_METHODS = 3  # whose range a sentence gives
_WARNINGS = 4  # methods that a line of warnings names
BESIDES = ("draws_temperature", "data_per_step", "per_million", "per_second")
"""Columns of a sweep's table that its figure does not draw."""


def sweep_finding(config: Mapping[str, Any], frame: pd.DataFrame, keys: Sequence[str]) -> str:
    """Return a sentence on the experiment's measure: where it is least and largest, method by method.

    Methods with the largest ratio of the two come first; those with one value in all jobs are left out.

    Args:
        config: of one of the runs.
        frame: a row for each job and method, with the column `SHORT`.
        keys: the swept settings.
    """
    measure = measure_of(config)
    if measure is None or measure.metric not in frame:
        return ""
    found = []
    for method in frame["method"].unique():
        rows = frame[frame["method"] == method]
        values = rows[measure.metric].map(_number)
        rows, values = rows[values.notna()], values.dropna()
        if len(rows) < 2 or values.max() == values.min():
            continue
        ends = []
        for at in (values.idxmin(), values.idxmax()):
            where = ", ".join(f"{key} = {rows.at[at, key]}" for key in keys)
            mark = f" {MARK}" * bool(rows.at[at, SHORT])
            ends.append(f"{shown(rows.at[at, measure.metric])}{mark} ({where})")
        ratio = values.max() / values.min() if values.min() > 0 else math.inf
        found.append((ratio, f"{method} from {' to '.join(ends)}"))
    found.sort(key=lambda pair: -pair[0])
    if frame[SHORT].astype(bool).all():
        return "Too short to compare: no method has converged in any job."
    heading = measure.heading[:1].upper() + measure.heading[1:]
    return f"{heading}: {'; '.join(words for _, words in found[:_METHODS])}." if found else ""


def sweep_warnings(frame: pd.DataFrame, of_runs: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """Return warnings: how many methods of all runs are too short to judge, then what the engine warned of.

    Args:
        frame: as of `sweep_finding`.
        of_runs: the swept settings of each job in words, and the warnings of its methods.
    """
    lines = []
    short = frame[frame[SHORT].astype(bool)]
    if len(short):
        counts = short["method"].value_counts(sort=False)
        jobs = frame.groupby("method", sort=False).size()
        some = [f"{name} ({count} of {jobs[str(name)]} jobs)" for name, count in counts.items()]
        rest = f" and {len(some) - _WARNINGS} more methods" if len(some) > _WARNINGS else ""
        lines.append(
            f"R-hat above {RHAT:g} or ESS below {ESS:g}, too short to judge ({MARK}, open marks): "
            f"{', '.join(some[:_WARNINGS])}{rest}."
        )
    return [*lines, *(f"{where}: {line}" for where, some in of_runs for line in some)]


def _number(value: Any) -> float:
    if isinstance(value, Estimate):
        return value.value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
