"""How the errors of a method's estimates fall with what it evaluates, and with time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mhrun.diagnostics.chains import ess_of_chain
from mhrun.kernels.stationary import EXACT
from mhrun.report.efficiency import passes, pilot_passes
from mhrun.report.vocabulary import Array, Estimate, Run

from ..shared.crossings import first_crossing
from .truth import Truth

LEVELS = (0.3, 0.1, 0.03)  # of the root mean square error, in posterior standard deviations
CHECKPOINTS = 16  # numbers of draws that errors are computed at
FIRST = 10  # draws


class Cost(NamedTuple):
    """What one chain takes for its draws: cumulative, without its set-up, (S,)."""

    evaluations: Array
    seconds: Array
    setup: float  # evaluations before the first draw


class Course(NamedTuple):
    """How the estimates of a method converge; all (K,)."""

    evaluations: Array  # of one chain after set-up
    seconds: Array  # likewise
    error: Array  # root mean square error of the estimates of one chain
    se: Array  # its standard error over chains


def cost(run: Run, method: str) -> Cost:
    """Return the cost of a method's kept draws, for one chain of its run.

    An evaluation is a log-likelihood of one datum at one point, or its gradient, or both from one pass. The set-up is
    burn-in and an equal share of what the chains have in common: the pilot, and the mode with its derivatives. Seconds
    are of the wall clock, those of the run divided by its number of chains.
    """
    summary = run.methods[method]
    chains = summary["chains"]
    burnt, spent = {}, {}
    with run.trace(method) as trace:  # opened once: that takes longer than reading it
        steps = run.draw_steps(method)
        for name in ("n_lik", "n_grad", "wall_s"):
            totals = np.atleast_2d(trace["sample_stats"][name].to_numpy()).astype(float)
            spent[name] = totals[:, np.searchsorted(_steps_of(summary, totals.shape[1]), steps)].mean(axis=0)
            if "warmup_sample_stats" in trace.children:
                burnt[name] = float(trace["warmup_sample_stats"][name].to_numpy()[..., -1].mean())
    after = {name: values - burnt.get(name, 0.0) for name, values in spent.items()}
    separate = summary["separate_gradients"]
    preparation = pilot_passes(summary.get("pilot"), separate) + float(summary.get("reference_n_grad", 0))
    setup = preparation / chains + passes(burnt.get("n_lik", 0.0), burnt.get("n_grad", 0.0), separate)
    evaluations = passes(after["n_lik"], after["n_grad"], separate)
    return Cost(evaluations, after["wall_s"] / chains, setup)


def _steps_of(summary: dict[str, Any], count: int) -> Array:
    """Return the steps of the kept statistics (count,), counted from 1 after burn-in."""
    thin, warmup = summary["thin_stats"], summary["warmup"]
    return (warmup // thin + 1 + np.arange(count)) * thin - warmup


def course(spent: Cost, values: Array, truth: Truth) -> Course:
    """Return the error of running means of functions (C, S, F).

    The root of the mean over chains and functions of ((mean of the draws - truth) / posterior sd)^2.
    """
    at = np.unique(np.geomspace(min(FIRST, values.shape[1]), values.shape[1], CHECKPOINTS).astype(int))
    means = np.cumsum(values, axis=1)[:, at - 1] / at[:, None]
    square = (((means - truth.mean) / truth.sd) ** 2).mean(axis=2)
    count = len(square)
    mean, se = square.mean(axis=0), square.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.nan
    root = np.sqrt(mean)
    return Course(spent.evaluations[at - 1], spent.seconds[at - 1], root, se / (2 * root))


def cost_of(found: Course, axis: str, level: float) -> Estimate:
    """Return the evaluations or seconds at which the error first reaches a level; NaN if it never does.

    Interpolated in logarithms. The standard error is that of an error that falls as one over the root of the cost.
    """
    spent = np.asarray(getattr(found, axis))
    value = first_crossing(spent, -np.log(found.error), -np.log(level), log=True)
    if np.isnan(value):
        return Estimate(value, value)
    first = int(np.argmax(found.error <= level))
    return Estimate(value, value * 2 * float(found.se[first] / found.error[first]))


def effective(values: Array) -> Estimate:
    """Return the effective sample size of all chains for the worst of some functions (C, S, F).

    The sum over chains of that of each chain about its own mean, with the standard error from differences of chains.
    """
    sizes = np.stack([ess_of_chain(values[:, :, f]) for f in range(values.shape[2])], axis=1)
    worst = sizes[:, int(np.argmin(sizes.sum(axis=0)))]
    count = len(worst)
    error = float(worst.std(ddof=1) * np.sqrt(count)) if count > 1 else float("nan")
    return Estimate(float(worst.sum()), error)


def is_exact(run: Run, method: str) -> bool:
    """Return whether a method declares the target its stationary distribution, whatever its minibatch."""
    return run.kind(method) == EXACT
