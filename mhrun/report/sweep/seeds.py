"""The figure of a sweep over seeds alone: each metric by method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhrun.diagnostics.grid import number_of
from mhrun.report.marks import SHORT
from mhrun.report.plots import panels
from mhrun.report.style import method_styles
from mhrun.report.sweep.figure import NOTHING, drawn_metrics, over_decades
from mhrun.report.sweep.text import SEED

_ROW = 0.21  # inches of a method
_MARKS = "small markers: one seed each"
_MEAN = "bars: mean over seeds and one standard error"
_FLOOR = "grey ticks: noise floor, mean over seeds"
_OPEN = "open markers: too short to judge"


def seeds_figure(
    frame: pd.DataFrame,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    headings: Mapping[str, str] | None = None,
    floors: Mapping[str, str] | None = None,
) -> Figure | str:
    """Draw each metric by method: a marker for each seed, and the mean over seeds with its standard error.

    Methods are named on the y axis. Seeds have no order, so nothing joins them.

    Args:
        frame: a row for each seed and method, as `mhrun.report.sweep.table.sweep_table` returns them.
        styles: of the methods by label, as `method_styles` returns them.
        headings: of the metrics; None: their names.
        floors: the columns with the noise floors of metrics.
    """
    floors = {metric: floor for metric, floor in (floors or {}).items() if floor in frame}
    if not (metrics := drawn_metrics(frame, [SEED], floors)):
        return NOTHING
    methods = list(frame["method"].unique())
    looks = {**method_styles(methods), **(styles or {})}
    columns = min(3, len(metrics))
    size = (4.6 if columns == 1 else 3.2, max(1.8, 0.8 + _ROW * len(methods)))
    figure, axes = panels(len(metrics), columns=columns, size=size)
    notes: dict[str, None] = {}
    for axis, metric in zip(axes, metrics, strict=True):
        if over_decades(frame[metric]):
            axis.set_xscale("log")
        for place, method in enumerate(methods):
            rows = frame[frame["method"] == method]
            notes |= _draw_method(axis, place, rows, metric, floors.get(metric), looks[method]["color"])
        axis.set(xlabel=(headings or {}).get(metric, metric))
    axes[0].set_yticks(range(len(methods)), methods)
    axes[0].set_ylim(len(methods) - 0.4, -0.6)  # the first method is at the top
    figure.tight_layout()
    text = "; ".join(note for note in (_MARKS, _MEAN, _FLOOR, _OPEN) if note in notes)
    figure.text(0.01, 0, text[:1].upper() + text[1:], va="top", fontsize=7)
    return figure


def _draw_method(
    axis: Axes, place: int, rows: pd.DataFrame, metric: str, floor: str | None, colour: str
) -> dict[str, None]:
    """Draw a metric of one method, and return the notes on what is drawn."""
    values = rows[metric].map(number_of).to_numpy(dtype=float)
    finite = np.isfinite(values)
    if not (count := int(finite.sum())):
        return {}
    notes = dict.fromkeys([_MARKS])
    is_short = rows[SHORT].to_numpy(dtype=bool) if SHORT in rows else np.zeros(len(rows), bool)
    for shown, face in ((finite & ~is_short, colour), (finite & is_short, "none")):
        if shown.any():
            style: dict[str, Any] = {"color": colour, "markersize": 3.5, "markeredgewidth": 0.8}
            axis.plot(values[shown], np.full(shown.sum(), place), "o", markerfacecolor=face, **style)
            notes |= {_OPEN: None} if face == "none" else {}
    if count > 1:
        error = values[finite].std(ddof=1) / np.sqrt(count)
        bar: dict[str, Any] = {"color": colour, "markersize": 9, "linewidth": 1, "capsize": 2.5}
        axis.errorbar(values[finite].mean(), place, xerr=error, fmt="|", **bar)
        notes |= {_MEAN: None}
    if floor is not None and np.isfinite(lowest := rows[floor].map(number_of).astype(float).mean()):
        axis.plot(lowest, place, "|", color="0.6", markersize=7, zorder=1)
        notes |= {_FLOOR: None}
    return notes
