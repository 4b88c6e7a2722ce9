"""Figure 6 of Seita et al. (2017), and how the variance of the log-ratio scales (their sections 1 and 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mhrun.report.metrics import Metrics, MetricTable
from mhrun.report.plots import levels, panels
from mhrun.report.vocabulary import Figure, Run, Style, log_slope

from ..shared.measures import in_order, of_sizes

STEPS = ("small", "middle", "large")
SCALES = np.geomspace(1e-4, 0.05, 10)  # step sizes that the variance is computed at
MANY = 20_000  # data that it is computed on


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable.by_method(run, of_sizes)
    table["order.size"] = in_order(table, [f"{method}.size" for method in STEPS])
    steps, variances = run.cached(variance_by_step)
    small = steps <= 0.01
    table["variance.slope"] = log_slope(steps[small], variances[small])
    table["variance.slope_temperature"] = run.cached(slope_by_temperature)
    return table


def variance_by_step(run: Run) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return step sizes and the variance over data of log p(x|theta') - log p(x|theta), times (n/K)^2.

    At one theta, where the chains of the first method are last, in one direction: theta' = theta + step z.
    """
    return SCALES, _variances(run, float(run.config["temperature"]), SCALES)


def _variances(run: Run, temperature: float, steps: npt.NDArray[Any]) -> npt.NDArray[Any]:
    target = run.target
    theta = torch.from_numpy(run.draws(next(iter(run.methods)))[0, -1:])
    z = torch.from_numpy(np.random.default_rng(0).standard_normal((1, target.dim)))
    rows = target.data.part(0, min(MANY, target.n))
    scale = target.n / temperature
    before = target.model.log_lik(theta.double(), _double(rows))
    variances = []
    for step in steps:
        after = target.model.log_lik(theta.double() + step * z, _double(rows))
        variances.append(float((scale * (after - before)).var()))
    return np.array(variances)


def slope_by_temperature(run: Run) -> float:
    """Return the power of the temperature that the variance goes with."""
    hot = [float(run.config["temperature"]) * factor for factor in (1.0, 2.0, 4.0, 8.0)]
    middle = len(SCALES) // 2
    variances = [_variances(run, temperature, SCALES[middle : middle + 1])[0] for temperature in hot]
    return log_slope(hot, variances)


def _double(rows: Any) -> dict[str, torch.Tensor]:
    """Return rows whose pixels are float64: small differences drown in the rounding of float32."""
    return {"x": rows["x"].double() / 255, "y": rows["y"]}


def variance(run: Run) -> Figure:
    """The variance of the terms against the step size."""
    steps, variances = run.cached(variance_by_step)
    panel_style: Style = {
        "xscale": "log",
        "yscale": "log",
        "xlabel": "step size",
        "ylabel": "variance of a term",
    }
    figure, (axis,) = panels(1, size=(4.6, 3.2), **panel_style)
    axis.plot(steps, variances[0] * (steps / steps[0]) ** 2, color="lightgrey", linewidth=4)
    axis.plot(steps, variances, "o", markersize=4)
    levels(axis, float(run.config["m"]), line=":")
    return figure
