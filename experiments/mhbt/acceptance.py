"""Figure 1 of Wu, Wang & Wong (2020): acceptance of SGLD and RSGLD proposals against the learning rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from mhrun.report import plots
from mhrun.report.metrics import Metrics, value
from mhrun.report.vocabulary import COLOURS, Array, Axes, Estimate, Figure, Run, by_rows, log_slope

from ..shared.crossings import first_crossing

READINGS: dict[str, str] = {"printed": "as printed", "code": "RSGLD code", "shared": "shared minibatch"}
# Of the SGLD proposal alone: on all data, where the text quotes how the learning rate must fall.
WHOLE: dict[str, str] = {"full": "all data", "mala": "all data, MALA's noise"}
PROPOSALS: Mapping[str, str] = {
    "sgld": "SGLD",
    "rsgld_1": r"RSGLD, $\beta = 1$",
    "rsgld_2": r"RSGLD, $\beta = 2$",
}
# What each proposal is to beat.
BEFORE = {"rsgld_1": "sgld", "rsgld_2": "rsgld_1"}
LEVELS = {"half": 0.5, "tenth": 0.1}
GAIN = 0.05  # of acceptance, from which on a proposal counts as significantly ahead
BATCHES = 20  # of steps, for standard errors
DECADES = 10.0 ** np.arange(-9, -2)  # of the digest's table


def learning_rates(run: Run, method: str | None = None) -> Array:
    """Return the learning rate of each chain of a method (of the first if None), n times its step size: (C,)."""
    n = run.config["data"]["n"]
    method = method or next(iter(run.methods))
    return n * np.asarray(run.config["methods"][method]["schedules"]["step_size"]["step_size"])


def acceptance(run: Run) -> Figure:
    """Acceptance against the learning rate (Figure 1, b to d), in three readings of the algorithm."""
    figure, axes = plots.panels(len(READINGS), size=(3.4, 3.0), xlabel=r"learning rate $\epsilon$")
    for axis, (reading, title) in zip(axes, READINGS.items(), strict=True):
        _curves(axis, run, reading)
        axis.set_title(title)
    axes[0].set_ylabel(f"acceptance, d = {run.config['dim']:,}")
    return plots.finished(figure, legend="right")


def _curves(axis: Axes, run: Run, reading: str) -> None:
    shown = [(f"{reading}_{proposal}", name, "-") for proposal, name in PROPOSALS.items()]
    if reading == "code":
        shown.append(("moving_rsgld_2", r"RSGLD, $\beta = 2$, normalised", ":"))
    for (method, name, line), colour in zip(shown, COLOURS, strict=False):
        if method in run.methods:
            axis.plot(
                learning_rates(run, method), rate(run, method), line, color=colour, label=name, linewidth=1.4
            )
    plots.levels(axis, *LEVELS.values(), linewidth=0.7, alpha=0.5)
    axis.set(xscale="log", ylim=(-0.03, 1.03))


def rate(run: Run, method: str) -> Array:
    """Return the average acceptance of each chain over all its steps: (C,)."""
    return np.asarray(run.methods[method]["accept_rate_by_chain"])


def largest_rate(rates: Array, acceptances: Array, level: float) -> float:
    """Return the largest learning rate with an acceptance of `level`, between the grid's on a logarithmic scale.

    NaN where none of the grid (C,) has it; the last of the grid where that has it.
    """
    return first_crossing(rates[::-1], acceptances[::-1], level, log=True)


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables, of one dimension."""
    numbers: Metrics = {}
    for method in run.methods:
        rates = learning_rates(run, method)
        numbers[f"{method}.accept_rate"] = run.methods[method]["accept_rate"]
        numbers[f"{method}.plateau"] = float(rate(run, method)[rates <= max(1e-8, 10 * rates[0])].mean())
        for name, level in LEVELS.items():
            numbers[f"{method}.eps_{name}"] = largest_rate(rates, rate(run, method), level)
        reading, _, proposal = method.partition("_")
        rival = f"{'code' if reading == 'moving' else reading}_{BEFORE.get(proposal)}"
        if rival in run.methods:
            accepted, rival_accepted = run.stat(method, "accepted"), run.stat(rival, "accepted")
            numbers[f"{method}.lead"] = lead(accepted, rival_accepted)
            base = f"{'code' if reading == 'moving' else reading}_sgld"
            within = (
                reasonable(rate(run, base)) if base in run.methods else np.zeros(len(accepted), dtype=bool)
            )
            nothing = Estimate(float("nan"), float("nan"))
            numbers[f"{method}.gain"] = (
                lead(accepted[within], rival_accepted[within]) if within.any() else nothing
            )
    return numbers


def reasonable(acceptances: Array) -> npt.NDArray[np.bool_]:
    """Return at which learning rates SGLD's acceptance (C,) is within the levels of Figure 1(a), 0.1 and 0.5."""
    return (acceptances >= LEVELS["tenth"]) & (acceptances <= LEVELS["half"])


def lead(one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]) -> Estimate:
    """Return by how much more of the proposals one method accepts than another, each (C, S): mean over all of them.

    The standard error is that of means over batches of steps: chains share minibatches.
    """
    by_step = one.mean(axis=0) - other.mean(axis=0)
    batches = [part.mean() for part in np.array_split(by_step, min(BATCHES, len(by_step)))]
    error = np.std(batches, ddof=1) / np.sqrt(len(batches)) if len(batches) > 1 else np.nan
    return Estimate(float(by_step.mean()), float(error))


def rates(run: Run) -> pd.DataFrame:
    """Average acceptance at some learning rates."""
    rows = {}
    for method in run.methods:
        grid = learning_rates(run, method)
        places = {
            eps: int(np.abs(np.log(grid / eps)).argmin()) for eps in DECADES if grid[0] <= eps <= grid[-1]
        }
        rows[run.label(method)] = {f"{eps:.0e}": float(rate(run, method)[i]) for eps, i in places.items()}
    return by_rows(rows)


def mismatch(run: Run, pairs: int = 50) -> float:
    """Return the mean of |g_J - g_I| / |g_I| over pairs of minibatches I, J at the origin."""
    x = run.target.data.fields["x"].numpy()
    rng, m = np.random.default_rng(0), int(run.config["m"])
    ratios = []
    for _ in range(pairs):
        one, other = (x[rng.choice(len(x), m, replace=False)].mean(axis=0) for _ in range(2))
        ratios.append(np.linalg.norm(other - one) / np.linalg.norm(one))
    return float(np.mean(ratios))


# --- Across dimensions --------------------------------------------------------------------------------------


def by_dimension(runs: Sequence[Run]) -> dict[int, Run]:
    """Return the runs by their dimension, in order."""
    return {int(run.config["dim"]): run for run in sorted(runs, key=lambda run: int(run.config["dim"]))}


def sweep_metrics(runs: Sequence[Run]) -> Metrics:
    """Return the metrics of the claims about several dimensions.

    `falls`: how many of the steps from one dimension to the next lower the largest learning rate; `grad_temperature`:
    of its logarithm against that of d, by least squares; `wins`: in how many dimensions above 1 a proposal accepts at
    least 0.05 more than the one before it, at the learning rates at which SGLD accepts between 0.1 and 0.5. NaN where
    a level is not reached.
    """
    numbers: Metrics = {}
    by_dim = by_dimension(runs)
    dims = np.array(list(by_dim), dtype=float)
    of_run = [run.cached(metrics) for run in by_dim.values()]
    for reading in (*READINGS, *WHOLE):
        for level in LEVELS:
            eps = np.array([value(row.get(f"{reading}_sgld.eps_{level}")) for row in of_run])
            falls, slope = float((np.diff(eps) < 0).sum()), float("nan")
            if len(eps) > 1 and np.isfinite(eps).all():
                slope = log_slope(dims, eps)
            numbers[f"{reading}.falls_{level}"] = falls if np.isfinite(eps).all() else float("nan")
            numbers[f"{reading}.slope_{level}"] = slope
            numbers[f"{reading}.last_{level}"] = float(eps[-1])
    proposals = [f"{reading}_{proposal}" for reading in READINGS for proposal in BEFORE]
    for method in (*proposals, "moving_rsgld_2"):
        gains = [value(row.get(f"{method}.gain")) for d, row in zip(dims, of_run, strict=True) if d > 1]
        numbers[f"{method}.wins"] = float(sum(gain > GAIN for gain in gains))
    return numbers


def largest_by_dimension(runs: Sequence[Run]) -> Figure:
    """The largest learning rate that keeps an acceptance, against the dimension (Figure 1, a)."""
    by_dim = by_dimension(runs)
    dims = np.array(list(by_dim), dtype=float)
    shown = READINGS | WHOLE
    figure, axes = plots.panels(len(shown), size=(2.8, 3.1), xscale="log", yscale="log", xlabel="dimension d")
    config = next(iter(by_dim.values())).config
    low, high = float(config["lowest"]), float(config["mala_highest"])
    for axis, (reading, title) in zip(axes, shown.items(), strict=True):
        first = float("nan")
        for (level, share), colour in zip(LEVELS.items(), COLOURS, strict=False):
            eps = [value(run.cached(metrics).get(f"{reading}_sgld.eps_{level}")) for run in by_dim.values()]
            axis.plot(dims, eps, "o-", color=colour, markersize=4, label=f"acceptance {share:g}")
            first = eps[0] if np.isnan(first) else first
        axis.plot(dims, first * (dims / dims[0]) ** -0.25, color="grey", linestyle="--", label=r"$d^{-1/4}$")
        if reading in READINGS:
            passes = config["m"] / config["data"]["n"] ** 2 / dims
            axis.plot(dims, passes, color="grey", linestyle=":", label=r"$m/(n^2 d)$")
        axis.set(title=title, ylim=(low, high))
    axes[0].set_ylabel(r"largest learning rate $\epsilon$")
    return plots.finished(figure, legend="right")


def panels(runs: Sequence[Run]) -> Figure:
    """Acceptance against the learning rate, by dimension and reading (Figure 1, b to d)."""
    by_dim, columns = by_dimension(runs), len(READINGS)
    figure, axes = plots.panels(len(by_dim) * columns, columns=columns, size=(3.4, 2.2), share="xy")
    for place, (d, run) in enumerate(by_dim.items()):
        for axis, reading in zip(axes[place * columns :], READINGS, strict=False):
            _curves(axis, run, reading)
        axes[place * columns].set_ylabel(f"acceptance, d = {d:,}")
    for axis, title in zip(axes, READINGS.values(), strict=False):
        axis.set_title(title)
    plots.label_edges(axes, columns, r"learning rate $\epsilon$")
    return plots.finished(figure, legend="right")


def largest_table(runs: Sequence[Run]) -> pd.DataFrame:
    """The largest learning rate with an acceptance of 0.5 and of 0.1, by dimension."""
    by_dim = by_dimension(runs)
    first = next(iter(by_dim.values()))
    rows = {
        f"{first.label(method)}, {share:g}": {
            f"d = {d:,}": run.cached(metrics).get(f"{method}.eps_{level}") for d, run in by_dim.items()
        }
        for method in first.methods
        for level, share in LEVELS.items()
    }
    return by_rows(rows)
