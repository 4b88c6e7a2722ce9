"""Section 4.2 of Li & Wong (2017): accuracy of MINT on two digits of MNIST, with the unsaid settings varied."""

from __future__ import annotations

import numpy as np

from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import band, legend_right, levels, panels
from mhrun.report.vocabulary import Array, Figure, Run, Style, method_styles

from ..shared.classify import accuracy, running_mean

LATE = 0.1  # share of the steps, from the end, over which acceptance is measured


def metrics(run: Run) -> Metrics:
    """Return accuracies of the last draw and of the mean of the draws, acceptance at the end and the weights' size."""
    return MetricTable.by_method(run, _of_method)


def _of_method(run: Run, method: str) -> Metrics:
    single, of_mean = run.cached(_accuracies)[method]
    accepted = run.stat(method, "accepted")
    return {
        "final": estimate(single[:, -1]),
        "of_mean": estimate(of_mean[:, -1]),
        "best": float(single.mean(axis=0).max()),
        "accept_late": float(accepted[:, -max(1, round(LATE * accepted.shape[1])) :].mean()),
        "accept_rate": run.methods[method]["accept_rate"],
        "norm": estimate(np.linalg.norm(run.draws(method)[:, -1], axis=1)),
    }


def _accuracies(run: Run) -> dict[str, tuple[Array, Array]]:
    """Return for each method the accuracies (C, S) of single draws and of the mean of the draws so far."""
    by_method = {}
    for method in run.methods:
        draws = run.draws(method)
        by_method[method] = accuracy(run, draws, method), accuracy(run, running_mean(draws), method)
    return by_method


def curves(run: Run) -> Figure:
    """Accuracy on the test images against passes through the data, with one standard error over runs."""
    panel_style: Style = {"xscale": "log", "xlabel": "passes through the data", "ylim": (0.9, 1.0)}
    figure, axes = panels(2, size=(4.7, 3.4), ylabel="accuracy on test images", **panel_style)
    m, n = int(run.config["m"]), run.target.n
    for method, look in method_styles(run.methods).items():
        x = (run.methods[method]["warmup"] + run.draw_steps(method)) * m / n
        for axis, values in zip(axes, run.cached(_accuracies)[method], strict=True):
            band(axis, x, values, color=look["color"], linestyle=look["linestyle"], label=run.label(method))
    for axis, title in zip(axes, ("single draws", "mean of the draws so far"), strict=True):
        levels(axis, 0.99, line=":", color="grey")
        axis.set_title(title)
    legend_right(axes[1])
    return figure
