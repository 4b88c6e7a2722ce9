"""The figure of a sweep: each metric against the first swept key."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.diagnostics.grid import Estimate
from mhrun.report.style import LINES, method_styles

NOTHING = (
    "There is no number to show: the experiment names none for sweeps (report.sweep), or no job has left any."
)


def sweep_figure(
    frame: pd.DataFrame, keys: list[str], looks: Mapping[str, Mapping[str, Any]] | None = None
) -> Figure | str:
    """Draw each metric against the first key swept; colours are methods, line styles the other keys.

    `looks` are the styles of the methods by label, as `method_styles` returns them.
    """
    metrics = [
        c for c in frame.columns if c not in (*keys, "method", "run") and frame[c].map(_number).notna().any()
    ]
    if not metrics:
        return NOTHING
    columns = min(3, len(metrics))
    rows = -(-len(metrics) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 2.7 * rows), squeeze=False)
    if pd.api.types.is_numeric_dtype(frame[keys[0]]):
        frame = frame.sort_values(keys[0], kind="stable")  # lines go from left to right
    else:  # words, or words among numbers, such as m=50,null: side by side, as they were given
        frame = frame.assign(**{keys[0]: frame[keys[0]].map(str)})
    groups = frame[keys[1:]].itertuples(index=False, name=None) if len(keys) > 1 else [()] * len(frame)
    lines = [", ".join(f"{k} = {v}" for k, v in zip(keys[1:], row, strict=True)) for row in groups]
    others = pd.Series(lines, index=frame.index)
    legend: dict[str, Any] = {}
    methods = frame["method"].unique()
    looks = {**method_styles(methods), **(looks or {})}
    for axis, metric in zip(axes.flat, metrics, strict=False):
        for method in methods:
            colour, mark = looks[method]["color"], looks[method]["marker"]
            for line, other in zip(cycle(LINES), others.unique(), strict=False):
                part = frame[(frame["method"] == method) & (others == other)]
                value = part[metric].map(_number).to_numpy(dtype=float)
                if np.isfinite(value).any():
                    error = np.nan_to_num(part[metric].map(_error).to_numpy(dtype=float))
                    drawn = axis.errorbar(part[keys[0]], value, error, fmt=line, marker=mark, markersize=3,
                                          color=colour, linewidth=1, capsize=2)  # fmt: skip
                    legend.setdefault(f"{method} ({other})" if other else method, drawn)
        axis.set(xlabel=keys[0], title=metric)
        if _over_decades(frame[keys[0]]):
            axis.set_xscale("log")
        if _over_decades(frame[metric]):
            axis.set_yscale("log")
    for axis in axes.flat[len(metrics) :]:
        axis.remove()
    figure.tight_layout()
    figure.legend(legend.values(), legend.keys(), loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _over_decades(values: pd.Series) -> bool:
    """Say whether numbers are to be drawn on a logarithmic scale: all positive, over two decades or more."""
    numbers = values.map(_number).to_numpy(dtype=float)
    there = numbers[np.isfinite(numbers)]
    return bool(there.size and there.min() > 0 and there.max() >= 100 * there.min())


def _number(value: Any) -> float:
    if isinstance(value, Estimate):
        return value.value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")


def _error(value: Any) -> float:
    return value.se if isinstance(value, Estimate) else 0.0
