"""Lemma 1 of Seita et al. (2017): do the earlier tests read all data with a probability that does not fall?"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.special import ndtr

from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run

from ..shared.measures import Metrics, estimate, of_sizes, size_histograms

# Of the lemma: the proposal's length is between 0.5 and 1 standard deviation; the chain is as far on the same side;
# u lies between the two ratios.
P0 = float(2 * (ndtr(1.0) - ndtr(0.5)))
P1 = P0 / 2
P2 = math.exp(-1.125) - math.exp(-2.0)


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim or a table speaks of."""
    found: Metrics = {"lemma.c": P0 * P1 * P2}
    for method in run.methods:
        found |= of_sizes(run, method)
        size, target = run.stat(method, "batch_size"), run.target_of(method)
        found[f"{method}.full_share"] = estimate((size == target.n).mean(axis=1))
        found[f"{method}.share"] = estimate(size.mean(axis=1) / target.n)
        draws = run.draws(method)[:, :, 0]
        mean = float(target.data.fields["x"].double().mean())
        error = draws.mean(axis=1).std(ddof=1) / np.sqrt(len(draws))
        found[f"{method}.mean_z"] = float(abs(draws.mean() - mean) / error)
        found[f"{method}.sd"] = Estimate(float(draws.std() * math.sqrt(target.n)), float("nan"))
    many, fewer = (found.get(f"mhminibatch_{name}.share") for name in ("printed", "fewer"))
    if isinstance(many, Estimate) and isinstance(fewer, Estimate):
        ratio = many.value / fewer.value
        found["share.ratio"] = Estimate(
            ratio, ratio * math.hypot(many.se / many.value, fewer.se / fewer.value)
        )
    return found


def usage(run: Run) -> pd.DataFrame:
    """What a decision reads.

    The share of the data behind a decision and the share of decisions that read all data, with standard errors over
    chains; data read besides, per decision; the posterior mean's deviation in standard errors, and its standard
    deviation times sqrt(n), which should be 1.
    """
    names = {
        "share of the data": "share",
        "all data read": "full_share",
        "besides, per decision": "aside",
        "acceptance": "accept_rate",
        "mean, z": "mean_z",
        "sd times root n": "sd",
    }
    return run.by_method(run.once(metrics), names)


def histograms(run: Run) -> Figure:
    """How many data a decision reads, in one chain.

    Both axes logarithmic; dashed: the mean.
    """
    return size_histograms(run, ("austere", "mhsublhd", "mhminibatch_printed", "mhminibatch"), 90, 20)


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    return [
        "AustereMH reads all data in a share of its decisions that falls with n, below the lemma's constant from about "
        "n = 10^6 on (0.27, 0.06, 0.017, 0.003 at n = 10^3 ... 10^6, m = 100): the last looks, with all but m of the "
        "data, have a standard error of nearly 0, so that only a mean within some sqrt(m/n) of its threshold is left "
        "to the end. The share of the data that it reads falls far more slowly (0.62, 0.50, 0.42, 0.36), and its draws "
        "are too wide, as it errs where a decision is close. Of MHSubLhd the lemma holds.",
        f"The lemma bounds the probability of reading all data by c = p0 p1 p2 = {P0 * P1 * P2:.5f} from below, for "
        "every n: normal data of unit variance, a flat prior, temperature 1, proposals N(theta, 1/n). For AustereMH it "
        "needs a critical value above 2, that is epsilon below 0.023.",
        "MHminibatch is no better here: its variance is n^2 (theta' - theta)^2 / b, of order n / b at this step, so "
        "that it needs a share of the data that does not fall with n either. What it saves elsewhere comes from a "
        "higher temperature or a smaller step. As printed that share is E min(z^2, 1) = 0.516, z standard normal; "
        "with a "
        "variance that accounts for drawing without replacement it is E z^2 / (1 + z^2) = 0.344, but for the pilot "
        "minibatch of the default.",
    ]
