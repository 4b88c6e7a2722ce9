"""The text of a sweep's page: a finding in one sentence, and the warnings of its runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from scipy import stats

from mhrun.diagnostics.grid import Estimate, number_of
from mhrun.report.declared import Measure, measure_of
from mhrun.report.efficiency import ESS, RHAT
from mhrun.report.marks import MARKS, SHORT
from mhrun.report.tables import quoted, shown

_METHODS = 3  # whose range a sentence gives
_WARNINGS = 4  # methods that a line of warnings names
BESIDES = ("draws_temperature", "data_per_step", "ess_per_million", "ess_per_second")
"""Columns of a sweep's table that its figure does not draw."""
SEED, SEEDS = "seed", "seeds"
"""The setting that a sweep's table is averaged over, and the column with the number of its values."""
_FALSE_ALARM = 0.01  # probability that any two jobs of a method differ, if all have the same expectation
_NO_DIFFERENCE = "no difference between settings beyond Monte Carlo error"
_UNJUDGED = "whether settings differ cannot be judged"
_FEWEST_SEEDS = 3  # with two, jobs must differ by eight standard deviations or so


def over_seeds(frame: pd.DataFrame, keys: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Return the means of a sweep's table over seeds, and the other keys; without a swept seed, the table as it is.

    A number becomes an `Estimate` of the mean over seeds and the standard deviation between them, NaN for one seed.
    A method is too short to judge, or faulty, if it is with any seed.

    Args:
        frame: a row for each job and method, with the column `SHORT`.
        keys: the swept settings.
    """
    if SEED not in keys:
        return frame, list(keys)
    other_keys = [key for key in keys if key != SEED]
    named = [*other_keys, "method"]
    numbers = [str(name) for name in frame.columns if name not in (*keys, "method", "run", *MARKS)]
    flags = [name for name in MARKS if name in frame]
    rows = []
    for _, group in frame.groupby(named, sort=False, dropna=False):
        row = {name: group[name].iloc[0] for name in named} | {SEEDS: int(group[SEED].nunique())}
        for name in numbers:
            values = group[name].map(number_of).dropna()
            row[name] = Estimate(float(values.mean()), float(values.std())) if len(values) else None
        rows.append(row | {name: bool(group[name].any()) for name in flags})
    return pd.DataFrame(rows, columns=[*named, SEEDS, *numbers, *flags]), other_keys


def sweep_finding(config: Mapping[str, Any], frame: pd.DataFrame, keys: Sequence[str]) -> str:
    """Return a sentence on the experiment's measure: where it is least and largest, method by method.

    Methods with the largest ratio of the two come first; those with one value in all jobs are left out. Methods whose
    range is no more than Monte Carlo error are named as such, see `_least_difference`; of those that are too short, or
    have too few seeds, it says that they cannot be judged.

    Args:
        config: of one of the runs.
        frame: a row for each job and method, with the column `SHORT`, or what `over_seeds` returns.
        keys: the swept settings.
    """
    measure = measure_of(config)
    if measure is None or measure.metric not in frame:
        return ""
    ranges = []
    equal: dict[str, list[str]] = {_NO_DIFFERENCE: [], _UNJUDGED: []}
    for method in frame["method"].unique():
        rows = frame[frame["method"] == method]
        values = rows[measure.metric].map(number_of)
        rows, values = rows[values.notna()], values.dropna()
        if len(rows) < 2 or values.max() == values.min():
            continue
        least, low, high = _least_difference(rows, measure), float(values.min()), float(values.max())
        if high - low <= least:
            mark, reason = f" {MARKS[SHORT]}" * bool(rows[SHORT].any()), _no_judgement(rows)
            texts = reason or f"one above {shown(least)} would show"
            equal[_UNJUDGED if reason else _NO_DIFFERENCE].append(
                f"{quoted(method)}{mark} ({shown(low)} to {shown(high)}; {texts})"
            )
            continue
        ends = []
        for at in (values.idxmin(), values.idxmax()):
            where = ", ".join(f"{key} = {rows.at[at, key]}" for key in keys)
            mark = f" {MARKS[SHORT]}" * bool(rows.at[at, SHORT])
            ends.append(f"{shown(rows.at[at, measure.metric])}{mark} ({where})")
        ratio = values.max() / values.min() if values.min() > 0 else math.inf
        ranges.append((ratio, f"{quoted(method)} from {' to '.join(ends)}"))
    ranges.sort(key=lambda pair: -pair[0])
    if frame[SHORT].astype(bool).all():
        return "Too short to compare: no method has converged in any job."
    heading = measure.heading[:1].upper() + measure.heading[1:]
    parts = [texts for _, texts in ranges[:_METHODS]]
    for what, named in equal.items():
        if named:
            rest = f" and {len(named) - _METHODS} more" if len(named) > _METHODS else ""
            parts.append(f"{what} for {', '.join(named[:_METHODS])}{rest}")
    return f"{heading}: {'; '.join(parts)}." if parts else ""


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the last parts of each swept setting, as many as distinguish it: ``methods.a.m`` is ``m``.

    A setting of a schedule has the quantity too: ``methods.a.schedules.step_size.start`` is ``step_size.start``.
    """
    names = {}
    for key in keys:
        parts = key.split(".")
        least = 2 if "schedules" in parts[:-2] else 1
        ends = [".".join(parts[-count:]) for count in range(least, len(parts) + 1)]
        others = [other for other in keys if other != key]
        names[key] = next(
            (end for end in ends if not any(o == end or o.endswith(f".{end}") for o in others)), key
        )
    return names


def _no_judgement(rows: pd.DataFrame) -> str:
    """Return why equal values of one method's jobs are no finding; empty if they are one."""
    if rows[SHORT].any():
        return "too short"
    seeds = int(rows[SEEDS].min()) if SEEDS in rows else _FEWEST_SEEDS
    return f"fewer than {_FEWEST_SEEDS} seeds" if seeds < _FEWEST_SEEDS else ""


def _least_difference(rows: pd.DataFrame, measure: Measure) -> float:
    """Return up to which width the range of a measure over the jobs of one method may be Monte Carlo error alone.

    Over seeds: the difference of the noise floors at the two ends, by which their Monte Carlo bias may differ, and the
    critical value of a t-test at a false-alarm rate of 1 % over all pairs (Bonferroni), with the standard deviation
    between seeds pooled over jobs. With one seed and a noise floor: the sum of the floors at the ends, as a distance is
    off by at most the distance of the draws from their own distribution, which is the floor on average. With standard
    errors alone: where no two jobs differ at the same rate. A number with neither is taken as exact.
    """
    column = rows[measure.metric]
    values = [number_of(value) for value in column]
    low, high = values.index(min(values)), values.index(max(values))
    floors = [number_of(rows[measure.floor].iloc[at]) for at in (low, high)] if measure.floor in rows else []
    has_floors = bool(floors) and all(map(math.isfinite, floors))
    errors = [value.se if isinstance(value, Estimate) else math.nan for value in column]
    tail = _FALSE_ALARM / (len(values) * (len(values) - 1))
    if SEEDS in rows:
        counts = [int(count) for count in rows[SEEDS]]
        deviations = [(count - 1, sd) for count, sd in zip(counts, errors, strict=True) if math.isfinite(sd)]
        if (freedom := sum(degrees for degrees, _ in deviations)) > 0:
            variance = sum(degrees * sd**2 for degrees, sd in deviations) / freedom
            error = math.sqrt(variance * (1 / counts[low] + 1 / counts[high]))
            bias = abs(floors[1] - floors[0]) if has_floors else 0.0
            return float(bias + stats.t.isf(tail, freedom) * error)
    if has_floors:
        return sum(floors)
    if SEEDS in rows:
        return 0.0
    return float(stats.norm.isf(tail) * math.hypot(errors[low], errors[high]))


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
        texts = [f"{quoted(str(name))} ({count} of {jobs[str(name)]} jobs)" for name, count in counts.items()]
        rest = f" and {len(texts) - _WARNINGS} more methods" if len(texts) > _WARNINGS else ""
        lines.append(
            f"R-hat above {RHAT:g} or ESS below {ESS:g}, too short to judge ({MARKS[SHORT]}, open marks): "
            f"{', '.join(texts[:_WARNINGS])}{rest}."
        )
    return [*lines, *(f"{where}: {line}" for where, texts in of_runs for line in texts)]
