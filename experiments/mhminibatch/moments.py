"""Moments of what each test samples on the mixture of Seita et al. (2017), beside those of its posterior."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from mhrun.diagnostics.chains import ess
from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, estimate, of_sizes, value
from .mixture import exact

TESTS = ("mhminibatch_released", "austere", "mhsublhd")


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim or a table speaks of."""
    _bins, mean, sd = exact(run)
    right = float(mean[1] ** 2 + sd[1] ** 2)
    found: Metrics = {"exact.square": right}
    for method in run.methods:
        draws = run.draws(method)
        found |= of_sizes(run, method)
        square = estimate((draws[:, :, 1] ** 2).mean(axis=1))
        found[f"{method}.square"] = square
        found[f"{method}.square_z"] = abs(square.value - right) / square.se
        for d in range(2):
            variance = estimate(((draws[:, :, d] - mean[d]) ** 2).mean(axis=1))
            ratio = float(np.sqrt(variance.value)) / float(sd[d])
            found[f"{method}.sd_ratio{d + 1}"] = Estimate(ratio, variance.se / (2 * variance.value) * ratio)
        found[f"{method}.ess"] = float(min(ess(draws[:, :, d]) for d in range(2)))
    if all(f"{test}.square" in found for test in TESTS):
        found["same.square_z"] = max(value(found[f"{test}.square_z"]) for test in TESTS)
    return found


def table(run: Run) -> pd.DataFrame:
    """Moments of the draws beside the posterior's.

    Mean of theta_2 squared, with its standard error over chains, and its deviation from quadrature in standard errors;
    root mean squares about the exact means over the exact standard deviations; data behind a decision; acceptance;
    effective sample size of all chains.
    """
    names = {
        "mean of theta_2^2": "square",
        "z": "square_z",
        "sd ratio, theta_1": "sd_ratio1",
        "sd ratio, theta_2": "sd_ratio2",
        "minibatch": "size",
        "acceptance": "accept_rate",
        "ESS": "ess",
    }
    return run.by_method(run.once(metrics), names)


def moments(run: Run) -> Figure:
    """The mean of theta_2 squared, which test by test should be the posterior's.

    Two standard errors; line: by quadrature.
    """
    found = run.once(metrics)
    names = list(run.methods)[::-1]
    figure, axis = plt.subplots(figsize=(5.6, 0.3 * len(names) + 0.9))
    numbers = [found[f"{method}.square"] for method in names]
    values = [value(each) for each in numbers]
    errors = [2 * each.se if isinstance(each, Estimate) else float("nan") for each in numbers]
    axis.axvline(value(found["exact.square"]), color="black", linewidth=1)
    axis.errorbar(
        values, [run.label(method) for method in names], xerr=errors, fmt="o", color=COLOURS[0], markersize=4
    )
    axis.set(xlabel=r"mean of $\theta_2^2$")
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found = run.once(metrics)
    return [
        f"By quadrature the mean of theta_2 squared is {value(found['exact.square']):.4f}. At the paper's ten trials "
        "of 3,000 "
        "steps its standard error is some 0.04, so that Figure 1 cannot show an error of a tenth; here it is about "
        "0.008.",
        "MHminibatch as printed and as released stops when the sample variance of the estimate happens to be small. "
        "Where "
        "terms are skewed the estimate is then off in one direction. A larger first minibatch makes this rarer.",
    ]
