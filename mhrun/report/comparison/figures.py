"""The figures of a comparison: efficiency and distances of all methods, and errors against cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from mhrun.diagnostics.grid import Estimate, number_of
from mhrun.report.comparison.compare import Comparison
from mhrun.report.convergence import is_finite
from mhrun.report.efficiency import unconverged
from mhrun.report.plots import panels
from mhrun.report.style import COLOURS, method_styles


def figure(found: Comparison) -> Figure | str:
    """Effective draws per million evaluations and per second, and distances from the reference, if given.

    Marks on logarithmic scales, on which a bar would have no origin. A mark is hollow where R-hat is undefined or above
    1.01, or ESS below 400: the method is too short to judge.
    """
    quantities = [
        ("ess_per_million", "effective draws\nper million evaluations"),
        ("ess_per_second", "effective draws\nper second"),
    ]
    if found.reference:
        quantities.append(("energy_distance", f"energy distance from\n{_label(found, found.reference)}"))
    names = list(found.rows)
    quantities = [q for q in quantities if any(is_finite(found.rows[name].get(q[0])) for name in names)]
    if not quantities:
        return "There is nothing to draw: no method has draws that can be compared."
    height = 0.30 * len(names) + 1.0
    drawn, axes = plt.subplots(
        1, len(quantities), figsize=(2.0 + 3.0 * len(quantities), height), sharey=True, squeeze=False
    )
    places = np.arange(len(names))[::-1]
    runs = list(dict.fromkeys(name.rpartition(": ")[0] for name in names))
    mixed = [is_finite(found.rows[name].get("rhat")) and not unconverged(found.rows[name]) for name in names]
    for axis, (key, label) in zip(axes[0], quantities, strict=True):
        values = [found.rows[name].get(key) for name in names]
        numbers = np.array([number_of(value) for value in values])
        errors = np.array([value.se if isinstance(value, Estimate) else np.nan for value in values])
        colours = [COLOURS[runs.index(name.rpartition(": ")[0]) % len(COLOURS)] for name in names]
        if isinstance(next(v for v in values if is_finite(v)), Estimate):
            # Only the end of a distance below its error can be shown on a logarithmic scale.
            for place, number, error, colour in zip(places, numbers, errors, colours, strict=True):
                _distance(axis, place, number, error, colour)
        else:
            for place, number, believed, colour in zip(places, numbers, mixed, colours, strict=True):
                axis.plot(number, place, "o", color=colour, markerfacecolor=colour if believed else "none")
            axis.margins(x=0.15)
        for place, value in zip(places, numbers, strict=True):
            if not np.isfinite(value):
                text = (
                    "reference"
                    if key == "energy_distance" and names[-1 - int(place)] == found.reference
                    else "–"
                )
                axis.text(0.02, place, text, transform=axis.get_yaxis_transform(), va="center", fontsize=8)
        axis.set(xscale="log", xlabel=label, ylim=(-0.7, len(names) - 0.3))
        _few_ticks(axis.xaxis)
        axis.grid(visible=False, axis="y")
    axes[0][0].set_yticks(places, _labels(found, names))
    drawn.tight_layout()
    return drawn


def error_figure(found: Comparison) -> Figure | str:
    """Errors of means and standard deviations against evaluations, as the chains of each method grow.

    A line falls with one over the square root of the evaluations until the method's bias remains, or the error of the
    reference, which is dashed.
    """
    curves = {name: found.growth[name] for name in found.rows if name in found.growth}
    costs_of = {name: number_of(found.rows[name].get("evaluations")) for name in curves}
    curves = {name: curve for name, curve in curves.items() if costs_of[name] > 0}
    if not curves:
        return "There is nothing to draw: no method has draws and evaluations that can be compared."
    labels = dict(zip(curves, _labels(found, list(curves)), strict=True))
    styles = method_styles(curves)  # of the rows of the comparison, which may be of several runs
    drawn, axes = panels(2, size=(3.6, 3.0), share="xy", xscale="log", yscale="log", xlabel="evaluations")
    of_panel = (("means", "mean"), ("standard deviations", "spread"))
    for place, (axis, (what, key)) in enumerate(zip(axes, of_panel, strict=True)):
        for name, curve in curves.items():
            look = styles[name] | {"markersize": 3.5, "label": labels[name]}
            axis.plot(curve.share * costs_of[name], getattr(curve, key), **look)
        if found.own_error is not None and found.own_error[place] > 0:
            axis.axhline(found.own_error[place], color="0.4", linewidth=1, linestyle="--", label="reference")
        axis.set_title(what)
        _few_ticks(axis.xaxis)
        _few_ticks(axis.yaxis)
    axes[0].set_ylabel("error (sd)")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
    return drawn


def _labels(found: Comparison, names: Sequence[str]) -> list[str]:
    """Return the labels of methods, without the name of the run where there is one run."""
    several = len({name.rpartition(": ")[0] for name in names}) > 1
    labels = [_label(found, name) for name in names]
    if several:
        return labels
    runs = [name.rpartition(": ") for name in names]
    return [label.removeprefix(f"{run}{colon}") for label, (run, colon, _) in zip(labels, runs, strict=True)]


def _label(found: Comparison, name: str | None) -> str:
    return found.labels.get(name or "", name or "")


def _few_ticks(axis: Axis) -> None:
    """Label a logarithmic axis of less than two decades at 1, 2 and 5, or at three numbers, lest labels overlap."""
    low, high = axis.get_view_interval()
    if high > 100 * low:
        return
    decades = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)))
    ticks = np.outer(decades, (1, 2, 5)).ravel()
    ticks = ticks[(ticks >= low) & (ticks <= high)]
    if len(ticks) < 2:
        ticks = np.asarray(MaxNLocator(3).tick_values(low, high))
        ticks = ticks[(ticks >= low) & (ticks <= high)]
    axis.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks])
    axis.set_minor_formatter(NullFormatter())


def _distance(axis: Any, place: float, number: float, error: float, colour: str) -> None:
    if not np.isfinite(number):
        return
    upper = number + 2 * np.nan_to_num(error)
    if number > 2 * np.nan_to_num(error):
        axis.plot([number - 2 * np.nan_to_num(error), upper], [place, place], color=colour, linewidth=1.2)
        axis.plot(number, place, "o", color=colour, markersize=5)
    elif upper > 0:
        axis.plot(upper, place, "<", color=colour, markersize=5, markerfacecolor="none")
    else:
        axis.text(0.02, place, "≤ 0", transform=axis.get_yaxis_transform(), va="center", fontsize=8)
