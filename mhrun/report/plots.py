"""Drawing helpers for figures of reports: panels, lines with bands, points with errors, legends outside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, MaxNLocator, NullLocator

from mhrun.diagnostics.grid import Estimate
from mhrun.report.metrics import Metric, value
from mhrun.report.style import COLOURS

THIN: dict[str, Any] = {"color": "black", "linewidth": 0.8}
_LEGEND_COLUMN = 1.7  # inches of a column of a legend


def panels(
    count: int,
    *,
    columns: int | None = None,
    size: tuple[float, float] = (3.0, 2.8),
    share: str = "y",
    **of_all: Any,
) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels, row by row; places of the last row that no panel needs are empty.

    Args:
        count: of panels; a figure has one at least.
        columns: panels beside each other; None: all.
        size: of one panel, in inches.
        share: which axes all panels have in common: "x", "y", "xy", "x row" (a y axis for each row) or "".
        of_all: what every panel is `Axes.set` to: ``xscale="log", xlabel=...``. Where panels share an axis, only the
            outer ones are labelled.
    """
    count = max(1, count)
    columns = min(columns or count, count)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(size[0] * columns, size[1] * rows),
        squeeze=False,
        sharex="x" in share,
        sharey="row" if "row" in share else "y" in share,
    )
    for axis in axes.flat[count:]:
        axis.remove()
    panel_axes: list[Axes] = list(axes.flat[:count])
    for number, axis in enumerate(panel_axes):
        inner = {
            "xlabel": "x" in share and number + columns < count,
            "ylabel": share not in ("", "x") and number % columns > 0,
        }
        axis.set(**{key: value for key, value in of_all.items() if not inner.get(key)})
    return figure, panel_axes


def finished(figure: Figure, *, legend: str = "", axes: Iterable[Axes] | None = None, **style: Any) -> Figure:
    """Return a figure whose panels are set apart, with one legend for all of them.

    Args:
        figure: whose panels are drawn.
        legend: where it is: "right" of all panels, "below" them in as many columns as fit, or "" for none.
        axes: whose lines it names, each label once; None: all.
        style: of the legend, such as ``fontsize`` or ``title``.
    """
    handles: dict[str, Artist] = {}
    for axis in figure.axes if axes is None else axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    if legend and handles:
        position: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        if legend == "below":
            columns = max(1, min(len(handles), int(figure.get_figwidth() / _LEGEND_COLUMN)))
            position = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "ncol": columns}
        # Long enough to tell dashes beside markers.
        figure.legend(list(handles.values()), list(handles), **({"handlelength": 3.2} | position | style))
    return figure


def legend_below(axis: Axes, columns: int = 2, drop: float = 0.18, **style: Any) -> None:
    """Draw the legend of one panel below it."""
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -drop), ncol=columns, **({"fontsize": 7} | style))


def legend_right(axis: Axes, **style: Any) -> None:
    """Draw the legend of one panel to its right."""
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), **style)


def band(
    axis: Axes,
    x: npt.ArrayLike,
    by_chain: npt.NDArray[Any],
    *,
    spread: str = "se",
    alpha: float = 0.2,
    **style: Any,
) -> None:
    """Draw the mean over chains (C, S) as a line, with a band of one standard error ("se") or deviation ("sd")."""
    mean, sd = by_chain.mean(axis=0), by_chain.std(axis=0)
    half_width = sd / np.sqrt(max(1, len(by_chain) - 1)) if spread == "se" else sd
    (line,) = axis.plot(x, mean, **({"linewidth": 1.2} | style))
    axis.fill_between(
        x, mean - half_width, mean + half_width, color=line.get_color(), alpha=alpha, linewidth=0
    )


def lines(axis: Axes, x: npt.ArrayLike, named: Mapping[str, npt.ArrayLike], **style: Any) -> None:
    """Draw a line for each of some named functions of x, in the colours of the style."""
    for (name, y), colour in zip(named.items(), cycle(COLOURS), strict=False):
        defaults: dict[str, Any] = {"color": colour, "linewidth": 1.2, "label": name}
        axis.plot(x, y, **(defaults | style))


def points(
    axis: Axes,
    x: npt.ArrayLike,
    numbers: Sequence[Metric],
    *,
    errors: float = 1.0,
    upright: bool = True,
    **style: Any,
) -> None:
    """Draw numbers with so many of their standard errors; those that have none, or an unknown one, without.

    Args:
        axis: the axes that are drawn on.
        x: their places on the other axis.
        numbers: to be drawn.
        errors: standard errors to either side.
        upright: whether they are drawn along the y axis.
        style: of `Axes.errorbar`.
    """
    values = [value(number) for number in numbers]
    half_widths = np.nan_to_num(
        [errors * number.se if isinstance(number, Estimate) else 0.0 for number in numbers]
    )
    defaults: dict[str, Any] = {"fmt": "o", "capsize": 2, "markersize": 4}
    if upright:
        axis.errorbar(x, values, yerr=half_widths, **(defaults | style))
    else:
        axis.errorbar(values, x, xerr=half_widths, **(defaults | style))


def levels(axis: Axes, *heights: float, line: str = "--", **style: Any) -> None:
    """Draw thin horizontal lines."""
    for height in heights:
        axis.axhline(height, **(THIN | {"linestyle": line} | style))


def label_edges(axes: Sequence[Axes], columns: int, x: str = "", y: str = "") -> None:
    """Label the x axes of the last row of panels and the y axes of the first column."""
    for number, axis in enumerate(axes):
        if x and number + columns >= len(axes):
            axis.set_xlabel(x)
        if y and number % columns == 0:
            axis.set_ylabel(y)


def few_ticks(axis: Axes) -> None:
    """Put few ticks on the x axis, 20000 as 20k."""
    narrow_ticks(axis.xaxis)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))


def narrow_ticks(*axes: Axis, count: int = 3, **style: Any) -> None:
    """Put few ticks on axes of narrow panels, lest their labels overlap.

    Args:
        axes: x or y axes.
        count: of intervals between ticks, at most.
        style: of `Axis.set_tick_params`, such as ``labelsize``.
    """
    for axis in axes:
        axis.set_major_locator(MaxNLocator(count))
        axis.set_tick_params(**style)


def logarithmic(axis: Axes, ticks: Sequence[float] = (1, 1.5, 2, 3, 5, 7)) -> None:
    """Make the y axis logarithmic, with plain numbers at these multiples of powers of ten."""
    axis.set_yscale("log")
    _powers(axis.yaxis, ticks)


def logarithmic_across(axis: Axes) -> None:
    """Make the x axis logarithmic, with plain numbers at 1, 2 and 5 times powers of ten."""
    axis.set_xscale("log")
    _powers(axis.xaxis, (1, 2, 5))


def sizes_across(axis: Axes, sizes: Sequence[float]) -> None:
    """Make the x axis logarithmic, with ticks at these sizes, 20000 as 20k."""
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(FixedLocator(list(sizes)))
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.xaxis.set_minor_locator(NullLocator())


def _powers(axis: Axis, ticks: Sequence[float]) -> None:
    axis.set_major_locator(LogLocator(subs=ticks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())
