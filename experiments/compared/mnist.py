"""Every acceptance test on logistic regression with a proper prior, against a long run on all data."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.special import expit

from mhrun.report.run import Run

from ..shared.classify import signed_images
from .common import (
    COLUMNS,
    OF_STEPS,
    Array,
    Course,
    Metrics,
    best,
    course,
    decisions_figure,
    efficiency_figure,
    error_figure,
    of_decisions,
    of_errors,
    of_method,
    pairs_of,
    repeats_of,
    table,
    tests,
    tried,
)

FEW = 20  # images whose predictions are taken for effective sample sizes
IMAGES = 400  # whose predictions are estimated
TRUTH = "truth"


def _others(run: Run) -> list[str]:
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
    mean, spread, _ = run.once(truth)
    return {
        method: course(run, method, predicted(run, method, IMAGES), mean, spread) for method in _others(run)
    }


def metrics(run: Run) -> Metrics:
    """Everything that the tables speak of."""
    found: Metrics = {"truth.error": run.once(truth)[2]}
    for method in _others(run):
        found |= of_method(run, method, predicted(run, method, FEW).astype(float))
    chosen = [method for method in best(run, found | {f"{TRUTH}.ess_per_million": 0.0}) if method != TRUTH]
    found |= of_errors(run, run.once(courses), chosen)
    base = next(method for method in chosen if method in tests(run)["metropolis"])
    for method in chosen:
        pairs = pairs_of(run, base, method)
        found |= of_decisions(run, method, tried(run, method, *pairs, repeats_of(run, method, len(pairs[0]))))
    return found


def chosen_of(run: Run) -> list[str]:
    """Return the methods that the comparison shows."""
    found = run.once(metrics)
    return [method for method in _others(run) if f"{method}.last" in found]


def compared(run: Run) -> pd.DataFrame:
    """The error of an estimate against what it costs, each test at its best step size.

    Error: mean square error of the mean predictions of one chain for test images, over their mean posterior variance:
    log-likelihoods that a chain evaluates until it is 0.1 and 0.01, its last value, and after how many that is. The
    truth is a long run on all data. Data behind a decision, after burn-in; data it reads besides; log-likelihoods per
    decision, at both points. How far the probability to accept is off on pairs of points from the posterior (root
    mean square, without what chance adds; the mean; of a chain that stores its minibatches it cannot be told so), and
    what the test promises. Effective sample size of all chains for the worst of 20 predictions, and per million
    evaluations. Evaluations have those of burn-in in them.
    """
    return table(run, run.once(metrics), chosen_of(run), COLUMNS)


def steps(run: Run) -> pd.DataFrame:
    """What each test costs and yields at each step size.

    Log-likelihoods per decision; acceptance; effective sample size, and per million evaluations, with standard errors
    over chains; the best of these chose the step size of the other table. It says nothing of what is sampled. Seconds
    of the whole run, burn-in with it, all chains together, and for one effective draw: of this machine, and of tests
    that read little the time is not that of their likelihoods.
    """
    columns = {**OF_STEPS, "seconds": "seconds", "seconds for one": "seconds_each"}
    return table(run, run.once(metrics), _others(run), columns)


def error(run: Run) -> Figure:
    """Mean square error of predictions against log-likelihoods evaluated.

    Of one chain; bands are two standard errors; grey: how far the truth, a long run on all data, may itself be off. An
    exact test falls like one over its cost; one that errs comes to rest.
    """
    floor = run.once(truth)[2]
    return error_figure(
        run, run.once(courses), chosen_of(run), "mean square error / posterior variance", floor
    )


def decisions(run: Run) -> Figure:
    """Wrong decisions against what a decision costs.

    Root mean square error of the probability to accept (below 0.001 drawn there), lines two standard errors either way.
    Filled: all that is evaluated; hollow: what the papers count.
    """
    return decisions_figure(run, run.once(metrics), chosen_of(run))


def efficiency(run: Run) -> Figure:
    """Effective sample size per million log-likelihoods evaluated, against the step size.

    For the worst of 20 predictions, all evaluations counted, with two standard errors. It says nothing of what is
    sampled.
    """
    return efficiency_figure(run, run.once(metrics))


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    return [
        "The prior is N(0, I), untempered; all tests have the Crank-Nicolson proposal, which that prior is reversible "
        "for. Each is shown at the step size of those tried that gives it most effective draws per evaluation; the "
        "long "
        f"run has {run.config['true_step_size']:g}. Its mean predictions may themselves be off by "
        f"{run.once(truth)[2]:.1e} of their mean variance (mean square), by the differences between its chains.",
        "What a test spends until the mean square error is at a level is empty where its run, or its bias, did not "
        "let it come "
        "so far.",
        "An evaluation is the log-likelihood of one datum at one point, as the algorithm needs it.",
    ]
