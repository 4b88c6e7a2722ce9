"""Moments of what each test samples on the mixture of Seita et al. (2017), beside those of its posterior."""

from __future__ import annotations

import numpy as np

from mhrun.diagnostics.chains import worth
from mhrun.report.metrics import Metrics, MetricTable, estimate, value
from mhrun.report.plots import panels, points
from mhrun.report.vocabulary import COLOURS, Estimate, Figure, Run

from ..shared.measures import of_sizes
from .mixture import exact

TESTS = ("mhminibatch_released", "austere", "mhsublhd")


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    _bins, mean, sd = exact(run)
    right = float(mean[1] ** 2 + sd[1] ** 2)

    def of_method(run: Run, method: str) -> Metrics:
        draws, numbers = run.draws(method), of_sizes(run, method)
        square = estimate((draws[:, :, 1] ** 2).mean(axis=1))
        numbers |= {"square": square, "square_z": abs(square.value - right) / square.se}
        for d in range(2):
            variance = estimate(((draws[:, :, d] - mean[d]) ** 2).mean(axis=1))
            ratio = float(np.sqrt(variance.value)) / float(sd[d])
            numbers[f"sd_ratio{d + 1}"] = Estimate(ratio, variance.se / (2 * variance.value) * ratio)
        return numbers | {"ess": worth(draws)["ess"]}

    table = MetricTable({"exact.square": right}) | MetricTable.by_method(run, of_method)
    if all(f"{test}.square" in table for test in TESTS):
        table["same.square_z"] = max(table.number(f"{test}.square_z") for test in TESTS)
    return table


def moments(run: Run) -> Figure:
    """The mean of theta_2 squared, which test by test should be the posterior's."""
    table, names = run.cached(metrics), list(run.methods)[::-1]
    figure, (axis,) = panels(1, size=(5.6, 0.3 * len(names) + 0.9), xlabel=r"mean of $\theta_2^2$")
    axis.axvline(value(table["exact.square"]), color="black", linewidth=1)
    numbers = [table[f"{method}.square"] for method in names]
    points(axis, [run.label(m) for m in names], numbers, errors=2, upright=False, color=COLOURS[0], capsize=0)
    return figure
