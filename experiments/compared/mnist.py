"""Every acceptance test on logistic regression with a proper prior, against a long run on all data."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from mhrun.report.metrics import Metrics, MetricTable
from mhrun.report.vocabulary import Array, Figure, Run

from ..shared.classify import signed_images
from . import common, trials
from .common import Course

FEW = 20  # images whose predictions are taken for effective sample sizes
IMAGES = 400  # whose predictions are estimated
TRUTH = "truth"


def others(run: Run) -> list[str]:
    """Return all methods but the long run."""
    return [method for method in run.methods if method != TRUTH]


def predicted(run: Run, method: str, most: int) -> Array:
    """Return the probability of the own label of some test images at each draw (C, S, images)."""
    images = signed_images(run)
    images = images[:: max(1, len(images) // most)][:most]
    return np.stack([expit(chain.astype(np.float32) @ images.T) for chain in run.draws(method)])


def truth(run: Run) -> tuple[Array, Array, float]:
    """Return the long run's mean predictions, one standard deviation for all (images,), and the error of the first.

    The error is a mean square over the images, over their mean variance: from the differences between chains.
    """
    values = predicted(run, TRUTH, IMAGES)
    mean, spread = values.mean(axis=(0, 1)), values.std(axis=(0, 1))
    by_chain = values.mean(axis=1)
    error = by_chain.var(axis=0, ddof=1) / len(by_chain)
    variance = float(np.mean(spread**2))  # one for all images: some have hardly any of their own
    return mean, np.full(len(mean), np.sqrt(variance)), float(error.mean()) / variance


def courses(run: Run) -> dict[str, Course]:
    """Return how the mean predictions of each method come closer to the truth."""
    mean, spread, _ = run.cached(truth)
    return {m: common.course(run, m, predicted(run, m, IMAGES), mean, spread) for m in others(run)}


def metrics(run: Run) -> Metrics:
    """Everything that the tables speak of."""
    found = MetricTable({"truth.error": run.cached(truth)[2]})
    for method in others(run):
        found.add(method, common.of_method(run, method, predicted(run, method, FEW).astype(float)))
    best = common.best(run, found | {f"{TRUTH}.ess_per_million": 0.0})
    chosen = [method for method in best if method != TRUTH]
    base = next(method for method in chosen if method in common.tests(run)["metropolis"])
    found |= common.of_errors(run, run.cached(courses), chosen)
    return found | trials.of_all_decisions(run, base, chosen)


def chosen_of(run: Run) -> list[str]:
    """Return the methods that the comparison shows."""
    found = run.cached(metrics)
    return [method for method in others(run) if f"{method}.last" in found]


def error(run: Run) -> Figure:
    """Mean square error of predictions against log-likelihoods evaluated."""
    floor, label = run.cached(truth)[2], "mean square error / posterior variance"
    return common.error_figure(run, run.cached(courses), chosen_of(run), label, floor)


def decisions(run: Run) -> Figure:
    """Wrong decisions against what a decision costs."""
    return common.decisions_figure(run, run.cached(metrics), chosen_of(run))


def efficiency(run: Run) -> Figure:
    """Effective sample size per million log-likelihoods evaluated, against the step size."""
    return common.efficiency_figure(run, run.cached(metrics))
