"""Test accuracy of exact methods on MNIST's 7s and 9s against the data that they have read."""

from __future__ import annotations

import numpy as np

from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import finished, panels
from mhrun.report.vocabulary import Array, Figure, Run, method_styles

from ..exact.costs import ratio
from ..shared.classify import accuracy, running_mean

POINTS = 60  # draws that accuracy is computed at


def metrics(run: Run) -> Metrics:
    """Minibatches, acceptance, final accuracy, and the data read until the accuracy is at its level.

    Where a chain of TunaMH never reaches the level there is no comparison.
    """
    table = MetricTable.by_method(run, of_method)
    for method in run.methods:
        if method != "tunamh" and table.get("tunamh.reached") == 1:
            table[f"{method}.over_tunamh"] = ratio(table[f"{method}.read"], table["tunamh.read"])
    return table


def of_method(run: Run, method: str) -> Metrics:
    """Return the metrics of one method; a chain that never reaches the level counts with all that it read."""
    at, right = course(run, method)
    level = float(run.config["level"])
    first = [np.flatnonzero(chain >= level) for chain in right]
    read = [at[c, reached[0]] if len(reached) else at[c, -1] for c, reached in enumerate(first)]
    sizes = run.stat(method, "batch_size").astype(float)
    return {
        "data": estimate(sizes.mean(axis=1)),
        "accept_rate": estimate(run.stat(method, "accepted").astype(float).mean(axis=1)),
        "final": estimate(right[:, -1]),
        "read": estimate(np.array(read)),
        "reached": float(np.mean([len(reached) > 0 for reached in first])),
    }


def course(run: Run, method: str) -> tuple[Array, Array]:
    """Return the data read (C, K) and the test accuracy of the running mean (C, K) at some draws."""
    means = running_mean(run.draws(method))
    at = np.unique(np.geomspace(1, means.shape[1], min(POINTS, means.shape[1])).astype(int)) - 1
    steps = run.draw_steps(method)[at]
    sizes = run.stat(method, "batch_size").astype(float)
    # Where few steps are kept, their mean stands for the others.
    thin = run.methods[method]["thin_stats"]
    read = np.cumsum(sizes, axis=1)[:, np.clip(steps // thin - 1, 0, sizes.shape[1] - 1)] * thin
    return read, accuracy(run, means[:, at], method)


def accuracy_by_cost(run: Run) -> Figure:
    """Test accuracy of the running mean against the data read, the mean over chains."""
    figure, (axis,) = panels(1, size=(5.0, 3.6), xscale="log", xlabel="data read", ylabel="test accuracy")
    looks = method_styles(run.methods)
    for method in run.methods:
        at, right = course(run, method)
        axis.plot(
            at.mean(axis=0),
            right.mean(axis=0),
            color=looks[method]["color"],
            label=run.label(method),
            linewidth=1.2,
        )
    axis.axhline(float(run.config["level"]), color="black", linestyle=":", linewidth=1)
    axis.set(ylim=(0.5, 1.0))
    return finished(figure, legend="right", axes=[axis], fontsize=8)
