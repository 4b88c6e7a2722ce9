"""Every acceptance test on a mixture whose density is known by quadrature."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mhrun.diagnostics.grid import Estimate, Grid, log_masses
from mhrun.report.run import Run

from ..shared.exact import Truth
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

GRID = Grid.of((-2.0, -3.5), (3.0, 3.5), 20)
WIDE = Grid.of((-8.0, -8.0), (8.0, 8.0), 160)


def cells(run: Run) -> Array:
    """Return the probability of each cell and, last, of what is outside (cells + 1,), by quadrature."""
    log_density = Truth(run.target).log_tempered(float(run.config["temperature"]))
    total = np.logaddexp.reduce(log_masses(log_density, WIDE, 3))
    inside = np.exp(log_masses(log_density, GRID, 4) - total)
    return np.append(inside, max(0.0, 1 - inside.sum()))


def functions(draws: Array) -> Array:
    """Return what is estimated, at points (..., 2): both parameters, their squares and their product, (..., 5)."""
    one, two = draws[..., 0], draws[..., 1]
    return np.stack([one, two, one**2, two**2, one * two], axis=-1)


def exact(run: Run) -> tuple[Array, Array]:
    """Return means and standard deviations of the functions (5,), by quadrature."""
    logs = log_masses(Truth(run.target).log_tempered(float(run.config["temperature"])), WIDE, 3)
    mass = np.exp(logs - np.logaddexp.reduce(logs))
    x, y = [(edges[:-1] + edges[1:]) / 2 for edges in WIDE]
    values = functions(np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2))
    mean = mass @ values
    return mean, np.sqrt(mass @ (values - mean) ** 2)


def courses(run: Run) -> dict[str, Course]:
    """Return how the estimates of each method come closer to the truth."""
    truth = run.once(exact)
    return {method: course(run, method, functions(run.draws(method)), *truth) for method in run.methods}


def metrics(run: Run) -> Metrics:
    """Everything that the tables speak of."""
    found: Metrics = {}
    for method in run.methods:
        found |= of_method(run, method, functions(run.draws(method)))
        found |= _distance(run, method)
    chosen = best(run, found)
    found |= of_errors(run, run.once(courses), chosen)
    base = next(method for method in chosen if method in tests(run)["metropolis"])
    for method in chosen:
        pairs = pairs_of(run, base, method)
        found |= of_decisions(run, method, tried(run, method, *pairs, repeats_of(run, method, len(pairs[0]))))
    return found


def _distance(run: Run, method: str) -> Metrics:
    """Return the total variation distance of all draws from quadrature, and what chance alone makes of it.

    Its standard error is a jackknife's, over chains. Chance: of as many independent draws as there are effective ones.
    """
    truth, shares = run.once(cells), GRID.shares(run.draws(method))
    count = len(shares)
    if count < 2:
        return {f"{method}.distance": float("nan"), f"{method}.chance": float("nan")}
    left = [0.5 * np.abs((shares.sum(axis=0) - each) / (count - 1) - truth).sum() for each in shares]
    error = float(np.sqrt((count - 1) * np.var(left)))
    size = of_method(run, method, functions(run.draws(method)))[f"{method}.ess"]
    ess = size.value if isinstance(size, Estimate) else float(size)
    chance = 0.5 * np.sqrt(2 / np.pi) * np.sqrt(truth * (1 - truth) / ess).sum()
    distance = 0.5 * float(np.abs(shares.mean(axis=0) - truth).sum())
    return {f"{method}.distance": Estimate(distance, error), f"{method}.chance": float(chance)}


def compared(run: Run) -> pd.DataFrame:
    """The error of an estimate against what it costs, each test at its best step size.

    Error: mean square error of the means of the parameters, their squares and their product over one chain, over the
    posterior's variance of each: log-likelihoods that a chain evaluates until it is 0.1 and 0.01, its last value, and
    after how many that is. Data behind a decision, after burn-in; data it reads besides; log-likelihoods per decision,
    at both points. How far the probability to accept is off on pairs of points from the posterior (root mean square,
    without what chance adds; the mean; of a chain that stores its minibatches it cannot be told so), and what the test
    promises. Effective sample size of all chains for the worst of the estimates, and per million evaluations. Distance
    (total variation) of all draws from quadrature, and what chance alone would make of it. Evaluations have those of
    burn-in in them.
    """
    found = run.once(metrics)
    columns = {**COLUMNS, "distance": "distance", "of chance": "chance"}
    return table(run, found, best(run, found), columns)


def steps(run: Run) -> pd.DataFrame:
    """What each test costs and yields at each step size.

    Log-likelihoods per decision; acceptance; effective sample size, and per million evaluations, with standard errors
    over chains; the best of these chose the step size of the other table. It says nothing of what is sampled.
    """
    return table(run, run.once(metrics), list(run.methods), OF_STEPS)


def error(run: Run) -> Figure:
    """Mean square error of estimates against log-likelihoods evaluated.

    Of one chain; bands are two standard errors. An exact test falls like one over its cost; one that errs comes to
    rest.
    """
    found = run.once(metrics)
    return error_figure(run, run.once(courses), best(run, found), "mean square error / posterior variance")


def decisions(run: Run) -> Figure:
    """Wrong decisions against what a decision costs.

    Root mean square error of the probability to accept (below 0.001 drawn there), lines two standard errors either way.
    Filled: all that is evaluated; hollow: what the papers count.
    """
    found = run.once(metrics)
    return decisions_figure(run, found, best(run, found))


def efficiency(run: Run) -> Figure:
    """Effective sample size per million log-likelihoods evaluated, against the step size.

    For the worst of the estimates, all evaluations counted, with two standard errors. It says nothing of what is
    sampled.
    """
    return efficiency_figure(run, run.once(metrics))


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    return [
        f"All tests have the same proposal, and n/K = {run.target.n / float(run.config['temperature']):g}. Each is "
        "shown "
        "at the step size of those tried that gives it most effective draws per evaluation. The ranking holds at this "
        "temperature: at K = 1 every test reads a fixed share of the data.",
        "What a test spends until the mean square error is at a level is empty where its run, or its bias, did not "
        "let it come "
        "so far.",
        "MHminibatch as printed and as released is biased, as it stops where the sample variance happens to be small: "
        "on the paper's mixture at n = 100,000 with m = 50, E theta_2^2 is 0.67 where quadrature has 0.738. The "
        "default takes the size of its minibatch from a pilot, and has 0.742 +- 0.007.",
        "An evaluation is the log-likelihood of one datum at one point, as the algorithm needs it: a sum over all data "
        "counts n, though it is computed here from some 700 weighted nodes.",
    ]
