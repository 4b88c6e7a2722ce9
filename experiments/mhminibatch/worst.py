"""Lemma 1 of Seita et al. (2017): do the earlier tests read all data with a probability that does not fall?"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.vocabulary import Estimate, Run

from ..shared.measures import of_sizes

# Of the lemma: the proposal's length is between 0.5 and 1 standard deviation; the chain is as far on the same side;
# u lies between the two ratios.
P0 = float(2 * (ndtr(1.0) - ndtr(0.5)))
P1 = P0 / 2
P2 = math.exp(-1.125) - math.exp(-2.0)


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable({"lemma.c": P0 * P1 * P2}) | MetricTable.by_method(run, _of_method)
    printed, fewer = (table.get(f"mhminibatch_{name}.share") for name in ("printed", "fewer"))
    if isinstance(printed, Estimate) and isinstance(fewer, Estimate):
        ratio = printed.value / fewer.value
        error = math.hypot(printed.se / printed.value, fewer.se / fewer.value)
        table["share.ratio"] = Estimate(ratio, ratio * error)
    return table


def _of_method(run: Run, method: str) -> Metrics:
    size, target, draws = run.stat(method, "batch_size"), run.target_of(method), run.draws(method)[:, :, 0]
    mean = float(target.data.fields["x"].double().mean())
    error = draws.mean(axis=1).std(ddof=1) / np.sqrt(len(draws))
    return of_sizes(run, method) | {
        "full_share": estimate((size == target.n).mean(axis=1)),
        "share": estimate(size.mean(axis=1) / target.n),
        "mean_z": float(abs(draws.mean() - mean) / error),
        "sd": Estimate(float(draws.std() * math.sqrt(target.n)), float("nan")),
    }
