"""Every acceptance test on logistic regression with a proper prior, against a long run on all data."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.special import expit

from mhrun.diagnostics.chains import ess
from mhrun.report.run import Run

from ..shared.classify import signed_images
from .common import (
    Array,
    Metrics,
    decisions_figure,
    distance_figure,
    efficiency_figure,
    evaluations,
    moments_to_tell,
    of_method,
    pairs_of,
    table,
    tried,
)

FEW = 20  # images whose log-odds stand for the parameters in effective sample sizes
TRUTH = "truth"


def _others(run: Run) -> list[str]:
    return [method for method in run.methods if method != TRUTH]


def _predicted(run: Run, draws: Array, upto: Array) -> Array:
    """Return the mean over chains and draws so far of the probability of each test image's own label (K, images)."""
    images = signed_images(run)
    total, done, found = np.zeros(len(images)), 0, []
    for count in upto:
        for start in range(done, count, 200):
            part = draws[:, start : min(start + 200, count)].reshape(-1, draws.shape[2]).astype(np.float32)
            total += expit(part @ images.T).sum(axis=0, dtype=np.float64)
        done = int(count)
        found.append(total / (done * len(draws)))
    return np.array(found)


def truth(run: Run) -> tuple[Array, float]:
    """Return the long run's mean predictions (images,), and how far they may be off (root mean square)."""
    draws = run.draws(TRUTH)
    halves = [_predicted(run, part, np.array([draws.shape[1]]))[0] for part in (draws[0::2], draws[1::2])]
    return (halves[0] + halves[1]) / 2, float(np.sqrt(np.mean((halves[0] - halves[1]) ** 2)) / 2)


def distances(run: Run) -> dict[str, tuple[Array, Array]]:
    """Return the evaluations and the root mean square error of the mean predictions, for each method."""
    right, found = run.once(truth)[0], {}
    for method in _others(run):
        draws, spent = run.draws(method), evaluations(run, method)
        at = moments_to_tell(draws.shape[1])
        off = np.sqrt(np.mean((_predicted(run, draws, at) - right) ** 2, axis=1))
        found[method] = (spent[at - 1], off)
    return found


def metrics(run: Run) -> Metrics:
    """Everything that the table speaks of."""
    found: Metrics = {"truth.error": run.once(truth)[1]}
    base = "metropolis" if "metropolis" in run.methods else _others(run)[0]
    pairs, repeats = pairs_of(run, base), int(run.config["repeats"])
    images = signed_images(run)[:: max(1, len(signed_images(run)) // FEW)][:FEW]
    for method in _others(run):
        odds = run.draws(method).astype(np.float32) @ images.T
        effective = np.array([ess(odds[:, :, i].astype(float)) for i in range(FEW)])
        last = float(run.once(distances)[method][1][-1])
        found |= of_method(
            run, method, tried(run, method, *pairs, repeats), float(np.median(effective)), last
        )
    return found


def compared(run: Run) -> pd.DataFrame:
    """Data per decision against correctness.

    Data behind a decision, after burn-in; data it reads besides; log-likelihoods per decision, at both points.
    How far the probability to accept is off on pairs of points from the posterior (root mean square, without what
    chance adds; the largest, with it; of a chain that stores its minibatches it cannot be told so), and what the
    test promises. Distance: root mean square error of the mean predictions for the test images, from those of a long
    run on all data; effective sample size (median over the log-odds of 20 images), and per million evaluations.
    Evaluations have those of burn-in in them.
    """
    return table(run, run.once(metrics), _others(run))


def distance(run: Run) -> Figure:
    """Distance to the truth against log-likelihoods evaluated.

    Root mean square, over the test images, of what the mean predicted probability is off; grey: how far the truth, a
    long run on all data with another step size, may itself be off.
    """
    figure = distance_figure(run, run.once(distances), "error of mean predictions")
    figure.axes[0].axhline(run.once(truth)[1], color="grey", linewidth=3, alpha=0.4)
    return figure


def decisions(run: Run) -> Figure:
    """Wrong decisions against what a decision costs.

    Root mean square error of the probability to accept (below 0.001 drawn there), lines up to two standard errors
    above it. Filled: all that is evaluated; hollow: what the papers count.
    """
    return decisions_figure(run, run.once(metrics), _others(run))


def efficiency(run: Run) -> Figure:
    """Effective sample size per million log-likelihoods evaluated.

    Of the log-odds of test images, all evaluations counted. It says nothing of what is sampled.
    """
    return efficiency_figure(run, run.once(metrics), _others(run))


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    return [
        "The prior is N(0, I), untempered; all tests have the Crank-Nicolson proposal, which that prior is reversible "
        f"for, with b = {run.config['step_size']:g}; the long run has b = {run.config['true_step_size']:g}. Its mean "
        f"predictions may themselves be off by {run.once(truth)[1]:.1e}, by the difference of its two halves.",
        "An evaluation is the log-likelihood of one datum at one point, as the algorithm needs it.",
    ]
