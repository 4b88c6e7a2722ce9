"""Figures of Table 1 and section 4.2 of Luo et al. (2020): accuracies, training and exchanges of networks."""

from __future__ import annotations

import numpy as np
from matplotlib.ticker import FixedLocator

from mhrun.report.metrics import Metric
from mhrun.report.plots import band, finished, panels, points
from mhrun.report.vocabulary import COLOURS, Figure, Run, Style, method_styles, monitored

from .networks import LEVELS, coldest, ladders, late, metrics, named, printed, there
from .rates import exchanges


def accuracy_figure(run: Run) -> Figure:
    """Test accuracy of each method, by the share of permuted labels (Table 1)."""
    numbers, names = run.cached(metrics), there(run)
    figure, axes = panels(len(LEVELS), size=(2.7, 2.7), share="xy")
    rows = -np.arange(len(names))
    for place, (axis, (level, words)) in enumerate(zip(axes, LEVELS.items(), strict=True)):
        for row, name in zip(rows, names, strict=True):
            number: Metric = numbers[f"{name}_{level}.accuracy"]
            style: Style = {"color": COLOURS[0 if name == "renhd" else 7], "markersize": 5}
            points(axis, [row], [number], upright=False, **style)
            if run.config["scale"] == "paper":
                axis.plot(printed(run)[name][place], row, "x", color=COLOURS[1], markersize=5)
        axis.set(
            title=words,
            xlabel="test accuracy (%)",
            yticks=rows,
            yticklabels=[named(run, name) for name in names],
        )
    return finished(figure)


def training_figure(run: Run) -> Figure:
    """Test accuracy of the current network against passes through the data."""
    figure, axes = panels(len(LEVELS), size=(2.9, 2.9), xlabel="passes", ylabel="test accuracy (%)")
    names = there(run)
    looks = method_styles(names)
    for axis, (level, words) in zip(axes, LEVELS.items(), strict=True):
        for name in names:
            method = f"{name}_{level}"
            x = monitored(run, method, "step") * float(run.config["m"]) / float(run.config["data"]["n"])
            style: Style = {"color": looks[name]["color"], "label": named(run, name)}
            band(axis, x, 100 - coldest(run, method, "error"), **style)
        axis.set_title(words)
    return finished(figure, legend="right", axes=axes[:1])


def exchange_figure(run: Run) -> Figure:
    """Share of the exchanges that are made, along the run and by pairs of rungs in its last third (section 4.2)."""
    figure, (left, right) = panels(2, size=(4.0, 2.9))
    lines, pairs = dict(zip(LEVELS, ("-", "--", ":"), strict=True)), int(run.config["rungs"]) - 1
    for method in ladders(run):
        name, _, level = method.rpartition("_")
        swaps = exchanges(run, method)
        style: Style = {
            "color": COLOURS[0 if name == "renhd" else 1],
            "linestyle": lines[level],
            "linewidth": 1.2,
        }
        parts = np.array_split(np.arange(swaps.shape[1]), min(10, max(1, swaps.shape[1] // 4)))
        places = [(np.mean(part) + 1) / swaps.shape[1] for part in parts]
        left.plot(places, [np.nanmean(swaps[:, part]) for part in parts], label=run.label(method), **style)
        end = swaps[:, -late(swaps) :]
        defined = np.isfinite(end).any(axis=1)
        right.plot(
            np.arange(len(end))[defined] + 0.5,
            np.nanmean(end[defined], axis=1),
            marker="o",
            markersize=3,
            **style,
        )
    for axis in (left, right):
        axis.axhspan(0.3, 0.4, color="0.85", zorder=0)
    left.set(xlabel="share of the run", ylabel="exchanges made", ylim=(-0.03, 1.03))
    right.set_xlabel("between two rungs")
    right.xaxis.set_major_locator(FixedLocator([j + 0.5 for j in range(pairs)]))
    right.set_xticklabels([f"{j}, {j + 1}" for j in range(pairs)], fontsize=7)
    return finished(figure, legend="right", axes=[left])
