"""Every acceptance test on a mixture whose density is known by quadrature."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mhrun.diagnostics.chains import ess
from mhrun.diagnostics.grid import Grid, log_masses
from mhrun.report.run import Run

from ..shared.exact import Truth
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

GRID = Grid.of((-2.0, -3.5), (3.0, 3.5), 20)
WIDE = Grid.of((-8.0, -8.0), (8.0, 8.0), 160)


def cells(run: Run) -> Array:
    """Return the probability of each cell and, last, of what is outside (cells + 1,), by quadrature."""
    log_density = Truth(run.target).log_tempered(float(run.config["temperature"]))
    total = np.logaddexp.reduce(log_masses(log_density, WIDE, 3))
    inside = np.exp(log_masses(log_density, GRID, 4) - total)
    return np.append(inside, max(0.0, 1 - inside.sum()))


def distances(run: Run) -> dict[str, tuple[Array, Array]]:
    """Return the evaluations and the total variation distance of the draws so far, for each method."""
    truth, found = run.once(cells), {}
    for method in run.methods:
        draws, spent = run.draws(method), evaluations(run, method)
        at = moments_to_tell(draws.shape[1])
        off = [0.5 * np.abs(GRID.shares(draws[:, :count]).mean(axis=0) - truth).sum() for count in at]
        found[method] = (spent[at - 1], np.array(off))
    return found


def metrics(run: Run) -> Metrics:
    """Everything that the table speaks of."""
    found: Metrics = {}
    base = "metropolis" if "metropolis" in run.methods else next(iter(run.methods))
    pairs, repeats = pairs_of(run, base), int(run.config["repeats"])
    for method in run.methods:
        draws = run.draws(method)
        least = min(ess(draws[:, :, d]) for d in range(2))
        last = float(run.once(distances)[method][1][-1])
        found |= of_method(run, method, tried(run, method, *pairs, repeats), least, last)
    return found


def compared(run: Run) -> pd.DataFrame:
    """Data per decision against correctness.

    Data behind a decision, after burn-in; data it reads besides; log-likelihoods per decision, at both points.
    How far the probability to accept is off on pairs of points from the posterior (root mean square, without what
    chance adds; the largest, with it; of a chain that stores its minibatches it cannot be told so), and what the
    test promises. Distance (total variation) of all draws from quadrature; effective sample size of all chains, and
    per million evaluations. Evaluations have those of burn-in in them.
    """
    return table(run, run.once(metrics), list(run.methods))


def distance(run: Run) -> Figure:
    """Distance to the truth against log-likelihoods evaluated.

    Total variation between the draws so far, of all chains, and quadrature, on 20 x 20 cells. A sound test falls like
    the root of its cost; one that errs comes to rest.
    """
    return distance_figure(run, run.once(distances), "total variation distance")


def decisions(run: Run) -> Figure:
    """Wrong decisions against what a decision costs.

    Root mean square error of the probability to accept (below 0.001 drawn there), lines up to two standard errors
    above it. Filled: all that is evaluated; hollow: what the papers count.
    """
    return decisions_figure(run, run.once(metrics), list(run.methods))


def efficiency(run: Run) -> Figure:
    """Effective sample size per million log-likelihoods evaluated.

    The smallest of the parameters, all evaluations counted. It says nothing of what is sampled.
    """
    return efficiency_figure(run, run.once(metrics), list(run.methods))


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    return [
        f"All tests have the same proposal, step size {run.config['step_size']:g}, and n/K = "
        f"{run.target.n / float(run.config['temperature']):g}. A test that can accept less often, as Barker's, is not "
        "given a larger step to make up for it.",
        "An evaluation is the log-likelihood of one datum at one point, as the algorithm needs it: a sum over all data "
        "counts n, though it is computed here from some 700 weighted nodes.",
    ]
