"""Figure 1 of Wu, Wang & Wong (2020): acceptance of SGLD and RSGLD proposals against the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, value
from .common import legend_beside, table

Array = npt.NDArray[np.floating]

READINGS: Mapping[str, str] = {
    "printed": "as printed",
    "code": "authors' code",
    "shared": "shared minibatch",
}
PROPOSALS: Mapping[str, str] = {
    "sgld": "SGLD",
    "rsgld_1": r"RSGLD, $\beta = 1$",
    "rsgld_2": r"RSGLD, $\beta = 2$",
}
# What each proposal is to beat.
BEFORE = {"rsgld_1": "sgld", "rsgld_2": "rsgld_1"}
LEVELS = {"half": 0.5, "tenth": 0.1}
LEAD = 0.005  # of mean acceptance, from which on a proposal counts as ahead
BATCHES = 20  # of steps, for standard errors
DECADES = 10.0 ** np.arange(-9, -2)  # of the digest's table


def learning_rates(run: Run) -> Array:
    """Return the learning rate of each chain, n times its step size: (C,)."""
    n = run.config["data"]["n"]
    method = next(iter(run.methods))
    return n * np.asarray(run.config["methods"][method]["schedules"]["step_size"]["step_size"])


def acceptance(run: Run) -> Figure:
    """Acceptance against the learning rate (Figure 1, b to d), in three readings of the algorithm.

    Left: Algorithm 1 and equation 7 as printed. Middle: the authors' code, where the minibatch of a rejected proposal
    moves on to the current point and the density leaves out its factor beta^-d; dotted: with the factor. Right, for
    contrast: both points on one minibatch. Dashed: 0.5 and 0.1, the levels of Figure 1(a).
    """
    figure, axes = plt.subplots(1, len(READINGS), figsize=(10.2, 3.0), sharey=True)
    for axis, reading in zip(axes, READINGS, strict=True):
        _curves(axis, run, reading)
        axis.set(title=READINGS[reading], xlabel=r"learning rate $\epsilon$")
    axes[0].set_ylabel(f"acceptance, d = {run.config['dim']:,}")
    legend_beside(figure, axes)
    return figure


def _curves(axis: Axes, run: Run, reading: str) -> None:
    shown = [(f"{reading}_{proposal}", name, "-") for proposal, name in PROPOSALS.items()]
    if reading == "code":
        shown.append(("moving_rsgld_2", r"RSGLD, $\beta = 2$, normalised", ":"))
    for (method, name, line), colour in zip(shown, COLOURS, strict=False):
        if method in run.methods:
            axis.plot(learning_rates(run), rate(run, method), line, color=colour, label=name, linewidth=1.4)
    for level in LEVELS.values():
        axis.axhline(level, color="black", linewidth=0.7, linestyle="--", alpha=0.5)
    axis.set(xscale="log", ylim=(-0.03, 1.03))


def rate(run: Run, method: str) -> Array:
    """Return the average acceptance of each chain over all its steps: (C,)."""
    return np.asarray(run.methods[method]["accept_rate_by_chain"])


def largest_rate(rates: Array, acceptances: Array, level: float) -> float:
    """Return the largest learning rate with an acceptance of `level`, between the grid's on a logarithmic scale.

    NaN where none of the grid (C,) has it; the last of the grid where that has it.
    """
    there = np.flatnonzero(acceptances >= level)
    if not len(there):
        return float("nan")
    i = int(there[-1])
    if i == len(rates) - 1:
        return float(rates[-1])
    share = (acceptances[i] - level) / (acceptances[i] - acceptances[i + 1])
    return float(np.exp(np.log(rates[i]) + share * np.log(rates[i + 1] / rates[i])))


def metrics(run: Run) -> Metrics:
    """Everything of one dimension that a claim or a table speaks of."""
    found: Metrics = {}
    rates = learning_rates(run)
    for method in run.methods:
        found[f"{method}.accept_rate"] = run.methods[method]["accept_rate"]
        found[f"{method}.plateau"] = float(rate(run, method)[rates <= 1e-8].mean())
        for name, level in LEVELS.items():
            found[f"{method}.eps_{name}"] = largest_rate(rates, rate(run, method), level)
        reading, _, proposal = method.partition("_")
        rival = f"{'code' if reading == 'moving' else reading}_{BEFORE.get(proposal)}"
        if rival in run.methods:
            found[f"{method}.lead"] = lead(run.stat(method, "accepted"), run.stat(rival, "accepted"))
    return found


def lead(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> Estimate:
    """Return by how much more of the proposals one method accepts than another, each (C, S): over all learning rates.

    The standard error is that of means over batches of steps: chains share minibatches.
    """
    by_step = one.mean(axis=0) - other.mean(axis=0)
    batches = [part.mean() for part in np.array_split(by_step, min(BATCHES, len(by_step)))]
    error = np.std(batches, ddof=1) / np.sqrt(len(batches)) if len(batches) > 1 else np.nan
    return Estimate(float(by_step.mean()), float(error))


def largest(run: Run) -> pd.DataFrame:
    """The largest learning rates that keep an acceptance of 0.5 and of 0.1 (Figure 1, a).

    Interpolated on the grid; empty where no learning rate of the grid has it. "Plateau": mean acceptance at learning
    rates up to 1e-8, where hardly anything moves and minibatch noise alone decides. "Lead": mean acceptance over all
    learning rates, less that of the proposal before it (RSGLD with beta 1 less SGLD, beta 2 less beta 1).
    """
    columns = {"at 0.5": "eps_half", "at 0.1": "eps_tenth", "plateau": "plateau", "lead": "lead"}
    return table(run, run.once(metrics), columns)


def rates(run: Run) -> pd.DataFrame:
    """Average acceptance at some learning rates.

    Of the chain whose learning rate is nearest.
    """
    grid = learning_rates(run)
    places = [int(np.abs(np.log(grid / eps)).argmin()) for eps in DECADES]
    rows = {
        run.label(method): {
            f"{eps:.0e}": float(rate(run, method)[i]) for eps, i in zip(DECADES, places, strict=True)
        }
        for method in run.methods
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def mismatch(run: Run, pairs: int = 50) -> float:
    """Return the mean of |g_J - g_I| / |g_I| over pairs of minibatches I, J at the origin."""
    x = run.target.data.fields["x"].numpy()
    rng, m = np.random.default_rng(0), int(run.config["m"])
    found = []
    for _ in range(pairs):
        one, other = (x[rng.choice(len(x), m, replace=False)].mean(axis=0) for _ in range(2))
        found.append(np.linalg.norm(other - one) / np.linalg.norm(one))
    return float(np.mean(found))


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    n, m, c, d = run.config["data"]["n"], run.config["m"], run.config["c"], run.config["dim"]
    spread = c * np.sqrt(d / m * (1 - m / n))
    lines = [
        "The text samples from N(0, I) with n, m and c_n given; here that is the unknown mean of data N(0, I) with a "
        "flat prior, begun at the origin, which gives the numbers of the text where a reading can.",
        f"As printed, the two minibatches put noise of standard deviation c sqrt(d (1 - m/n) / m) = {spread:.2g} on "
        "the log-ratio whatever the learning rate, and a chain stays with the luckiest minibatch it has met: its "
        "plateau falls with d, and from d = 10 on no learning rate has acceptance 0.5, from d = 100 on none 0.1. "
        "In the authors' code the current point gets a minibatch afresh, and about every other proposal is accepted.",
        "RSGLD's density as printed (equation 7) is a normalised mixture; with its factor beta^-d in place, beta = 2 "
        "gains little over beta = 1, and nothing where half of the proposals are accepted. The authors' code and "
        "Proposition 1 leave the factor out; then every forward move has a proposal ratio of about exp(0.375 d) and is "
        "accepted whatever the likelihood says.",
        "With one minibatch for both points the order is reversed: with beta = 1 a forward move is undone by a "
        "backward one of the same density, and nearly all are accepted.",
        "Assumption 6 (all minibatches have similar gradients) fails here: near the mode a minibatch's gradient is "
        f"noise, |g_J - g_I| = {mismatch(run):.2f} |g_I| on average.",
    ]
    if run.config["noise"] == "printed":
        lines.append(
            "The noise is the printed one, sqrt(2 eps)/n, too small by sqrt(n) to sample at temperature 1 and by "
            "sqrt(n T) for the tempered target; the ratio of the proposal densities then has exponents of size "
            "n^2 eps d / m, so that eps must fall like m / (n^2 d). With noise=posterior, sqrt(2 eps/n), or "
            "noise=tempered, sqrt(2 eps/c_n), learning rates may be n and n T times as large, up to about 1."
        )
    return lines


# --- Across dimensions --------------------------------------------------------------------------------------


def by_dimension(runs: Sequence[Run]) -> dict[int, Run]:
    """Return the runs by their dimension, in order."""
    return {int(run.config["dim"]): run for run in sorted(runs, key=lambda run: int(run.config["dim"]))}


def sweep_metrics(runs: Sequence[Run]) -> Metrics:
    """What a claim says of several dimensions.

    `falls`: how many of the steps from one dimension to the next lower the largest learning rate; `slope`: of its
    logarithm against that of d, by least squares; `wins`: in how many dimensions above 1 a proposal is ahead of the
    one before it. NaN where a level is not reached.
    """
    found: Metrics = {}
    there = by_dimension(runs)
    dims = np.array(list(there), dtype=float)
    of_run = [run.once(metrics) for run in there.values()]
    for reading in READINGS:
        for level in LEVELS:
            eps = np.array([value(each.get(f"{reading}_sgld.eps_{level}")) for each in of_run])
            whole = np.isfinite(eps).all()
            found[f"{reading}.falls_{level}"] = (
                float(sum(a > b for a, b in pairwise(eps))) if whole else float("nan")
            )
            found[f"{reading}.slope_{level}"] = (
                float(np.polyfit(np.log(dims), np.log(eps), 1)[0]) if whole and len(eps) > 1 else float("nan")
            )
            found[f"{reading}.last_{level}"] = float(eps[-1])
    for method in [f"{reading}_{proposal}" for reading in READINGS for proposal in BEFORE] + [
        "moving_rsgld_2"
    ]:
        leads = [value(each.get(f"{method}.lead")) for d, each in zip(dims, of_run, strict=True) if d > 1]
        found[f"{method}.wins"] = float(sum(each > LEAD for each in leads))
    return found


def largest_by_dimension(runs: Sequence[Run]) -> Figure:
    """The largest learning rate that keeps an acceptance, against the dimension (Figure 1, a).

    The SGLD proposal in Algorithm 1. Grey: the rate d^(-1/4) that the text quotes, through the first point, and
    m / (n^2 d), where the log-ratio of the proposal densities passes 1. No point: no learning rate of the grid has it.
    """
    there = by_dimension(runs)
    dims = np.array(list(there), dtype=float)
    figure, axes = plt.subplots(1, len(READINGS), figsize=(10.2, 3.1), sharey=True)
    config = next(iter(there.values())).config
    low, high = float(config["lowest"]), float(config["highest"])
    for axis, reading in zip(axes, READINGS, strict=True):
        first = float("nan")
        for (level, share), colour in zip(LEVELS.items(), COLOURS, strict=False):
            eps = [value(run.once(metrics).get(f"{reading}_sgld.eps_{level}")) for run in there.values()]
            axis.plot(dims, eps, "o-", color=colour, markersize=4, label=f"acceptance {share:g}")
            first = eps[0] if np.isnan(first) else first
        axis.plot(dims, first * (dims / dims[0]) ** -0.25, color="grey", linestyle="--", label=r"$d^{-1/4}$")
        axis.plot(
            dims,
            config["m"] / config["data"]["n"] ** 2 / dims,
            color="grey",
            linestyle=":",
            label=r"$m/(n^2 d)$",
        )
        axis.set(xscale="log", yscale="log", title=READINGS[reading], xlabel="dimension d", ylim=(low, high))
    axes[0].set_ylabel(r"largest learning rate $\epsilon$")
    legend_beside(figure, axes)
    return figure


def panels(runs: Sequence[Run]) -> Figure:
    """Acceptance against the learning rate, by dimension and reading (Figure 1, b to d).

    Rows are dimensions; columns and lines as on the pages of the runs.
    """
    there = by_dimension(runs)
    figure, axes = plt.subplots(
        len(there), len(READINGS), figsize=(10.2, 2.2 * len(there)), sharex=True, sharey=True, squeeze=False
    )
    for row, (d, run) in zip(axes, there.items(), strict=True):
        for axis, reading in zip(row, READINGS, strict=True):
            _curves(axis, run, reading)
        row[0].set_ylabel(f"acceptance, d = {d:,}")
    for axis, reading in zip(axes[0], READINGS, strict=True):
        axis.set_title(READINGS[reading])
    for axis in axes[-1]:
        axis.set_xlabel(r"learning rate $\epsilon$")
    legend_beside(figure, axes.flat)
    return figure


def largest_table(runs: Sequence[Run]) -> pd.DataFrame:
    """The largest learning rate with an acceptance of 0.5 and of 0.1, by dimension.

    Empty where no learning rate of the grid has it.
    """
    there = by_dimension(runs)
    first = next(iter(there.values()))
    rows = {
        f"{first.label(method)}, {share:g}": {
            f"d = {d:,}": run.once(metrics).get(f"{method}.eps_{level}") for d, run in there.items()
        }
        for method in first.methods
        for level, share in LEVELS.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def sweep_notes(runs: Sequence[Run]) -> list[str]:
    """What a reader should know beside the numbers."""
    found = sweep_metrics(runs)
    told = [
        f"{READINGS[reading]}: d^{value(found[f'{reading}.slope_{level}']):.2f} at {LEVELS[level]:g}"
        for reading in READINGS
        for level in LEVELS
        if np.isfinite(value(found[f"{reading}.slope_{level}"]))
    ]
    return [
        "How the largest learning rate of the SGLD proposal falls: "
        f"{'; '.join(told) or 'no level is reached throughout'}. The text quotes d^(-1/4), which is for Langevin "
        "moves whose noise fits their drift; with the printed noise the log-ratio is about -n^2 eps d / m, and eps "
        "falls like 1/d.",
        "Figure 1 can be had from the authors' code (minibatches move on, densities are not normalised), and not "
        "from Algorithm 1 and equation 7 as printed: there no learning rate has acceptance 0.5 from d = 10 on.",
    ]
