"""Every acceptance test on a mixture whose density is known by quadrature."""

from __future__ import annotations

import numpy as np

from mhrun.diagnostics.grid import Grid, log_masses
from mhrun.report.metrics import Metrics, MetricTable, value
from mhrun.report.vocabulary import Array, Estimate, Figure, Run

from ..shared.exact import Truth
from . import common, trials
from .common import Course

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
    truth = run.cached(exact)
    return {m: common.course(run, m, functions(run.draws(m)), *truth) for m in run.methods}


def metrics(run: Run) -> Metrics:
    """Everything that the tables speak of."""
    found = MetricTable()
    for method in run.methods:
        size = common.of_method(run, method, functions(run.draws(method)))
        found.add(method, size | _distance(run, method, value(size["ess"])))
    chosen = common.best(run, found)
    base = next(method for method in chosen if method in common.tests(run)["metropolis"])
    found |= common.of_errors(run, run.cached(courses), chosen)
    return found | trials.of_all_decisions(run, base, chosen)


def chosen_of(run: Run) -> list[str]:
    """Return the methods that the comparison shows."""
    return common.best(run, run.cached(metrics))


def _distance(run: Run, method: str, ess: float) -> Metrics:
    """Return the total variation distance of all draws from quadrature, and what chance alone makes of it.

    Its standard error is a jackknife's, over chains. Chance: of as many independent draws as there are effective ones.
    """
    truth, shares = run.cached(cells), GRID.shares(run.draws(method))
    count = len(shares)
    if count < 2:
        return {"distance": float("nan"), "chance": float("nan")}
    left = [0.5 * np.abs((shares.sum(axis=0) - each) / (count - 1) - truth).sum() for each in shares]
    error = float(np.sqrt((count - 1) * np.var(left)))
    chance = 0.5 * np.sqrt(2 / np.pi) * np.sqrt(truth * (1 - truth) / ess).sum()
    distance = 0.5 * float(np.abs(shares.mean(axis=0) - truth).sum())
    return {"distance": Estimate(distance, error), "chance": float(chance)}


def error(run: Run) -> Figure:
    """Mean square error of estimates against log-likelihoods evaluated."""
    label = "mean square error / posterior variance"
    return common.error_figure(run, run.cached(courses), chosen_of(run), label)


def decisions(run: Run) -> Figure:
    """Wrong decisions against what a decision costs."""
    return common.decisions_figure(run, run.cached(metrics), chosen_of(run))


def efficiency(run: Run) -> Figure:
    """Effective sample size per million log-likelihoods evaluated, against the step size."""
    return common.efficiency_figure(run, run.cached(metrics))
