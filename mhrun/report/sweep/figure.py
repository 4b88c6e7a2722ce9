"""The figure of a sweep: each metric against the first swept key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mhrun.diagnostics.chains import ESS, RHAT
from mhrun.diagnostics.grid import Estimate, number_of
from mhrun.report.marks import MARKS, SHORT
from mhrun.report.plots import levels
from mhrun.report.style import COLOURS, LINES, method_styles
from mhrun.report.sweep.text import BESIDES, short_names

NOTHING = (
    "There is no number to show: the experiment names none for sweeps (report.sweep), or no job has left any."
)
NO_METHODS = (
    "No job of this sweep has methods to compare; the tables and figures of each job are in its own report."
)

_ENTRIES = 8  # of a legend with several settings
_LOOKS = len(COLOURS) * len(LINES)  # of methods
_ENTRY_HEIGHT = 0.18  # inches of a legend
_FLOOR: dict[str, Any] = {"linestyle": (0, (1, 1)), "linewidth": 0.8, "alpha": 0.8}
_LIMITS = {"rhat": RHAT, "ess": ESS}
_FROM = {
    "rhat": 1.0,
    "ess": 0.0,
    "accept_rate": 0.0,
}  # where the axis of a metric begins, lest noise fills it
_GAP = 0.08  # between the labels of lines, as a share of the axis


def sweep_figure(
    frame: pd.DataFrame,
    keys: list[str],
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    headings: Mapping[str, str] | None = None,
    floors: Mapping[str, str] | None = None,
    bars: str = "one standard error",
) -> Figure | str:
    """Draw each metric against the first key swept; colours are methods, line styles the other keys.

    Where one key is swept, the legend has an entry for each method, with its colour, line style and marker. Else it has
    eight entries at most: one for each line, or else one for each method and one for each value of the other keys. If
    these are more than eight too, or line styles do not suffice, lines are labelled at their right ends.

    Args:
        frame: a row for each job and method, as `mhrun.report.sweep.table.sweep_table` returns them.
        keys: the swept settings.
        styles: of the methods by label, as `method_styles` returns them.
        headings: of the metrics; None: their names.
        floors: the columns with the noise floors of metrics.
        bars: what the error bars are.
    """
    floors = {metric: floor for metric, floor in (floors or {}).items() if floor in frame}
    if not (metrics := drawn_metrics(frame, keys, floors)):
        return NOTHING
    lines = _lines(frame, keys, metrics, floors, styles or {})
    columns = min(2 if lines.are_labelled else 3, len(metrics))
    rows = -(-len(metrics) // columns)
    size = (3.6 * columns, 2.7 * rows)
    if lines.are_labelled:
        size = (5.4 * columns, max(2.7, 0.17 * lines.number) * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
    legend: dict[str, Any] = {}
    drawn_methods: set[str] = set()
    notes: dict[str, None] = {}
    for axis, metric in zip(axes.flat, metrics, strict=False):
        panel = _draw_panel(axis, lines, metric, bars)
        axis.set(title=(headings or {}).get(metric, metric))
        legend |= {name: drawn for name, drawn in panel.legend.items() if name not in legend}
        drawn_methods |= panel.methods
        notes |= panel.notes
        if lines.are_labelled:
            _label(axis, panel.ends)
    for axis in axes.flat[len(metrics) :]:
        axis.remove()
    figure.tight_layout()
    if notes:
        texts = "; ".join(sorted(notes))
        figure.text(0.01, 0, texts[:1].upper() + texts[1:], va="top", fontsize=7)  # names keep their letters
    if not lines.are_labelled:
        if len(legend) > _ENTRIES and lines.are_by_setting:
            legend = _legend_of_styles(lines, drawn_methods)
        in_column = max(_ENTRIES, int(size[1] / _ENTRY_HEIGHT))
        figure.legend(
            legend.values(),
            legend.keys(),
            loc="upper left",
            bbox_to_anchor=(1, 1),
            ncol=-(-len(legend) // in_column),
            handlelength=3.2,  # long enough to tell dashes beside markers
        )
    return figure


def drawn_metrics(frame: pd.DataFrame, keys: Sequence[str], floors: Mapping[str, str]) -> list[str]:
    """Return the columns that a figure draws: those with numbers, but for settings, marks, costs and noise floors."""
    besides = (*keys, "method", "run", *MARKS, *BESIDES, *floors.values())
    return [c for c in frame.columns if c not in besides and frame[c].map(number_of).notna().any()]


class _Lines(NamedTuple):
    """What is drawn in each panel: a line for each method and each setting of the keys after the first."""

    frame: pd.DataFrame  # in the order of the first key
    key: str  # the first key, whose values are on the axis
    heading: str  # its short name
    settings: pd.Series  # of the other keys in words, row by row
    metrics: list[str]
    methods: list[str]
    styles: Mapping[str, Mapping[str, Any]]  # of methods
    line_styles: Mapping[str, Any]  # of settings
    floors: Mapping[str, str]
    number: int

    @property
    def are_by_setting(self) -> bool:
        """Whether line styles are settings of other keys, instead of those of the methods."""
        return len(self.line_styles) > 1

    @property
    def are_labelled(self) -> bool:
        """Whether lines have labels at their ends, as they are too many for a legend."""
        if not self.are_by_setting and self.number <= _LOOKS:
            return False
        entries, settings = len(self.methods) + len(self.line_styles), len(self.line_styles)
        return self.number > _ENTRIES and (entries > _ENTRIES or not 1 < settings <= len(LINES))


def _lines(
    frame: pd.DataFrame,
    keys: list[str],
    metrics: list[str],
    floors: Mapping[str, str],
    styles: Mapping[str, Mapping[str, Any]],
) -> _Lines:
    if pd.api.types.is_numeric_dtype(frame[keys[0]]):
        frame = frame.sort_values(keys[0], kind="stable")  # lines go from left to right
    else:  # texts, or texts among numbers, such as m=50,null: side by side, as they were given
        frame = frame.assign(**{keys[0]: frame[keys[0]].map(str)})
    groups = frame[keys[1:]].itertuples(index=False, name=None) if len(keys) > 1 else [()] * len(frame)
    short = short_names(keys)
    texts = [", ".join(f"{short[k]} = {v}" for k, v in zip(keys[1:], row, strict=True)) for row in groups]
    settings = pd.Series(texts, index=frame.index)
    methods = list(frame["method"].unique())
    return _Lines(
        frame,
        keys[0],
        short[keys[0]],
        settings,
        metrics,
        methods,
        {**method_styles(methods), **styles},
        dict(zip(settings.unique(), cycle(LINES), strict=False)),
        floors,
        len(set(zip(frame["method"], settings, strict=True))),
    )


class _Panel(NamedTuple):
    """What a panel has, for the legend and the notes of the figure."""

    legend: dict[str, Any]  # line -> what was drawn
    methods: set[str]
    notes: dict[str, None]
    ends: list[_End]


def _draw_panel(axis: Axes, lines: _Lines, metric: str, bars: str) -> _Panel:
    """Draw a metric of all methods, with its noise floors."""
    frame, panel = lines.frame, _Panel({}, set(), {}, [])
    bottom = -np.inf
    if over_decades(frame[metric]):
        axis.set_yscale("log")
        bottom = _bottom(frame[[metric, *([lines.floors[metric]] if metric in lines.floors else [])]])
    for method in lines.methods:
        of_method = frame["method"] == method
        parts = _parts(frame[of_method], lines.settings[of_method], lines.key, lines.metrics)
        for setting, part in parts.items():
            name = f"{method} ({setting})" if setting else method
            style = dict(lines.styles[method])
            if lines.are_by_setting:
                style["linestyle"] = lines.line_styles.get(setting, LINES[0])
            if is_untouched := _is_untouched(part, lines.metrics):
                style["marker"] = ""
            drawn, end = _draw_line(axis, part, lines.key, metric, name, style, bottom)
            if end is None:
                continue
            panel.legend[name] = drawn
            panel.methods.add(method)
            panel.ends.append(end)
            panel.notes.update(_notes(part, metric, bars, bottom))
            if is_untouched:
                panel.notes[f"lines without marks: the same at each {lines.heading}"] = None
            if metric in lines.floors:
                floor = part[lines.floors[metric]].map(number_of)
                axis.plot(part[lines.key], floor, **_FLOOR, color=style["color"])
                if np.isfinite(floor.to_numpy(dtype=float)).any():
                    panel.notes["fine dots: noise floor"] = None
    axis.set(xlabel=lines.heading)
    if over_decades(frame[lines.key]):
        axis.set_xscale("log")
    if metric in _LIMITS and panel.ends:
        levels(axis, _LIMITS[metric], color="grey")
        panel.notes[f"grey dashes: {'R-hat' if metric == 'rhat' else 'ESS'} {_LIMITS[metric]:g}"] = None
    if np.isfinite(bottom):
        axis.set_ylim(bottom=bottom)
    elif metric in _FROM and panel.ends:
        axis.set_ylim(bottom=min(_FROM[metric], axis.get_ylim()[0]))
    return panel


def _bottom(drawn: pd.DataFrame) -> float:
    """Return where a logarithmic axis begins: at half of the smallest number that is drawn."""
    values = drawn.map(number_of).to_numpy(dtype=float)
    return float(values[(values > 0) & np.isfinite(values)].min()) / 2


def _legend_of_styles(lines: _Lines, drawn_methods: set[str]) -> dict[str, Any]:
    """Return an entry for each method and one for each setting, where lines are too many."""
    entries = {}
    for method in lines.methods:
        if method in drawn_methods:
            style = lines.styles[method]
            entries[method] = Line2D(
                [], [], color=style["color"], marker=style["marker"], markersize=3, linewidth=1
            )
    for setting, line in lines.line_styles.items():
        entries[setting] = Line2D([], [], color="grey", linestyle=line)
    return entries


def _parts(
    rows: pd.DataFrame, settings: pd.Series, key: str, metrics: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """Return the points of one method's lines by setting; one line, without a setting, if settings do not touch it.

    They do not where its points at each place of the first key are the same for all settings that have one, and each
    setting has a place in common with another: a job that is refused leaves a gap.
    """
    places = rows[key].map(str)
    numbers = rows[list(metrics)].map(number_of)
    points = numbers.assign(**{key: places}).drop_duplicates()
    is_shared = places.duplicated(keep=False).groupby(settings).any()
    if len(is_shared) > 1 and is_shared.all() and points[key].is_unique and numbers.notna().any(axis=None):
        return {"": rows.loc[points.index]}
    return {str(setting): rows[settings == setting] for setting in settings.unique()}


def _is_untouched(part: pd.DataFrame, metrics: Sequence[str]) -> bool:
    """Return whether a line has several points with the same numbers: the swept setting has no effect on the method."""
    numbers = part[list(metrics)].map(number_of)
    return len(part) > 1 and len(numbers.drop_duplicates()) == 1 and bool(numbers.notna().any(axis=None))


def _notes(part: pd.DataFrame, metric: str, bars: str, bottom: float) -> dict[str, None]:
    """Return the meanings of the bars and marks that a line has."""
    error = part[metric].map(_error).fillna(0.0)
    has = {
        f"bars: {bars}": (error > 0).any(),
        "arrows: bars that go on below the axis": _is_cut(part[metric], bottom).any(),
        "open markers: too short to judge": SHORT in part and part[SHORT].any(),
    }
    return {texts: None for texts, is_drawn in has.items() if is_drawn}


def _is_cut(column: pd.Series, bottom: float) -> npt.NDArray[np.bool_]:
    """Return which bars go through the bottom of a logarithmic axis, as those do that reach zero."""
    lower = column.map(number_of) - column.map(_error)
    return (lower <= bottom).to_numpy(dtype=bool)


class _End(NamedTuple):
    """The right end of a line."""

    name: str
    colour: Any
    x: Any
    y: float


def _draw_line(
    axis: Axes, part: pd.DataFrame, key: str, metric: str, name: str, style: Mapping[str, Any], bottom: float
) -> tuple[Any, _End | None]:
    """Draw a metric of one method against the first key; return what was drawn and its right end, or None twice.

    Nothing is drawn of a metric without a finite value.

    The marks of methods that are too short to judge are hollow; bars that go through the bottom end in an arrow.
    """
    value = part[metric].map(number_of).to_numpy(dtype=float)
    if not np.isfinite(value).any():
        return None, None
    colour, mark = style["color"], style["marker"]
    error = np.nan_to_num(part[metric].map(_error).to_numpy(dtype=float))
    line_style: dict[str, Any] = {"markersize": 3, "color": colour}
    bars = error if error.any() else None
    drawn = axis.errorbar(
        part[key], value, bars, fmt=style["linestyle"], marker=mark, linewidth=1, capsize=2, **line_style
    )
    if (cut := _is_cut(part[metric], bottom)).any():
        at_bottom: dict[str, Any] = {"transform": axis.get_xaxis_transform(), "clip_on": False}
        axis.plot(part[key][cut], np.zeros(cut.sum()), "v", **line_style, **at_bottom)
    if SHORT in part and mark:
        short = part[SHORT].to_numpy(dtype=bool)
        hollow = {
            **line_style,
            "markersize": 5,
            "markerfacecolor": "white",
            "markeredgewidth": 0.8,
            "zorder": 3,
        }
        axis.plot(part[key][short], value[short], mark, **hollow)
    at = np.flatnonzero(np.isfinite(value))[-1]
    return drawn, _End(name, colour, part[key].iloc[at], value[at])


def _label(axis: Axes, ends: Sequence[_End]) -> None:
    """Write the name of each line beside its right end, one above the other, with a thin line to it."""
    if not ends:
        return
    axis.margins(x=0.02)
    to_axes = axis.transData + axis.transAxes.inverted()
    x = axis.convert_xunits
    points = [np.array([np.asarray(x(end.x), dtype=float).item(), end.y]) for end in ends]
    heights = [float(to_axes.transform(point)[1]) for point in points]
    order = np.argsort(heights, kind="stable")
    step = 1 / max(1, len(ends) - 1) if len(ends) > 1 else 0.0
    gap = min(step, _GAP)
    shown = np.array([heights[i] for i in order])
    for i in range(1, len(shown)):  # upwards, then down from the top where they stand out
        shown[i] = max(shown[i], shown[i - 1] + gap)
    excess = max(0.0, shown[-1] - 1.0)
    if excess:
        shown[-1] = 1.0
        for i in range(len(shown) - 2, -1, -1):
            shown[i] = min(shown[i], shown[i + 1] - gap)
    for i, height in zip(order, shown, strict=True):
        end = ends[i]
        axis.annotate(
            end.name,
            (end.x, end.y),
            xytext=(1.05, height),
            textcoords="axes fraction",
            fontsize=6,
            color=end.colour,
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),  # from the left of the text, lest lines cross it
                "color": end.colour,
                "linewidth": 0.4,
                "alpha": 0.6,
            },
        )


def over_decades(values: pd.Series) -> bool:
    """Return whether numbers are to be drawn on a logarithmic scale: all positive, over two decades or more."""
    numbers = values.map(number_of).to_numpy(dtype=float)
    finite = numbers[np.isfinite(numbers)]
    return bool(finite.size and finite.min() > 0 and finite.max() >= 100 * finite.min())


def _error(value: Any) -> float:
    return value.se if isinstance(value, Estimate) else 0.0
