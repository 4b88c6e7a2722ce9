"""Section 4.2 of Luo et al. (2020): how often replicas of a network exchange, and what an exchange reads."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.ticker import MaxNLocator

from mhrun.exchanges import MADE
from mhrun.report.metrics import Metrics, MetricTable
from mhrun.report.plots import finished, levels, panels
from mhrun.report.vocabulary import Array, Estimate, Figure, Run, Style, method_styles

from .replicas import largest_dim, swap_rate


def exchanges(run: Run, method: str) -> Array:
    """Return whether rungs j and j + 1 exchanged after each round (R - 1, S L): 1 or 0, NaN if none was offered.

    Of L ladders, those of one round are side by side.
    """
    with run.trace(method) as trace:
        coded = trace["sample_stats"]["exchange"].to_numpy()  # (L R, S)
    rungs = run.rungs(method)
    coded = coded.reshape(-1, rungs, coded.shape[1]).transpose(1, 2, 0).reshape(rungs, -1)
    even = coded[0] > 0
    exchanged = np.full((len(coded) - 1, coded.shape[1]), np.nan)
    for j in range(len(exchanged)):
        offered = even == (j % 2 == 0)
        exchanged[j, offered] = coded[j, offered] == MADE
    return exchanged


def read(run: Run, method: str) -> Array:
    """Return the share of all data that a chain reads for each of its exchanges (E,)."""
    with run.trace(method) as trace:
        stats = trace["sample_stats"]
        coded, total = stats["exchange"].to_numpy(), stats["n_lik"].to_numpy()
    per_round = np.diff(total, axis=1, prepend=0)
    shares: Array = per_round[coded > 0] / run.target.n
    return shares


def temperatures(run: Run, method: str) -> Array:
    """Return the temperatures of the rungs (C, 1)."""
    ladder: Array = run.config["ratio"] ** np.arange(run.rungs(method), dtype=float)[:, None]
    return ladder


def noise(run: Run, method: str) -> Array:
    """Return b = e V / 2 on each rung at each look (C, L): V is the measured variance of the minibatch gradient.

    Luo et al. (2020), equations 2 and 20: what minibatches add to the momenta in a step has the variance 2 b e.
    """
    metrics_of = run.monitor(method)
    half_variance: Array = (
        metrics_of["step_size"] * metrics_of[f"variance_{run.config['m']}"]
    ).to_numpy() / 2
    return half_variance


def thermostats(run: Run, method: str) -> Array:
    """Return thermostats over (c + b) / T, their mean by Theorem 1, on each rung at each look (C, L)."""
    ratios: Array = run.monitor(method)["thermostat"].to_numpy() / (
        (run.config["c"] + noise(run, method)) / temperatures(run, method)
    )
    return ratios


def metrics(run: Run) -> Metrics:
    """Return rates early and late, what an exchange reads, the dimension that a rate stands for, and thermostats."""
    return MetricTable.by_method(run, _of_method)


def _of_method(run: Run, method: str) -> Metrics:
    swaps, errors = exchanges(run, method), run.monitor(method)["error"].to_numpy()
    third, ratio = max(1, swaps.shape[1] // 3), run.config["ratio"]
    early, late = share(swaps[:, :third]), share(swaps[:, -third:])
    measurable = late.value > 0.005  # below, no ladder of this size tells rates apart
    return {
        "early": early,
        "late": late,
        "all": share(swaps),
        "read": float(read(run, method).mean()),
        "dimension": float(largest_dim(late.value, ratio)) if measurable else math.nan,
        "predicted": predicted(run),
        **_of_thermostats(run, method, third),
        "coldest": float(errors[0, -1]),
        "hottest": float(errors[-1, -1]),
    }


def _of_thermostats(run: Run, method: str, last: int) -> Metrics:
    """Return metrics of the thermostats at the last monitor runs; NaN without a thermostat."""
    if "thermostat" not in run.monitor(method):
        return {"c_over_b": math.nan, "thermostat": math.nan, "swing": math.nan}
    ratios = thermostats(run, method)[:, -last:]
    return {
        "c_over_b": float(run.config["c"] / noise(run, method)[:, -last:].mean()),
        "thermostat": float(ratios.mean()),
        "swing": float(np.sqrt(np.mean((ratios[-1] - 1) ** 2))),
    }


def predicted(run: Run) -> float:
    """Return the swap rate of neighbours in equilibrium in a harmonic potential of the network's dimension."""
    rate = swap_rate(run.config["ratio"], run.target.dim)
    return rate if rate > 1e-6 else 0.0  # the quadrature does not reach so far into the tails


def share(made: Array) -> Estimate:
    """Return the share that was made, with the standard error of as many independent exchanges."""
    finite = made[np.isfinite(made)]
    mean = float(finite.mean()) if len(finite) else math.nan
    return Estimate(mean, math.sqrt(mean * (1 - mean) / max(1, len(finite))))


def figure(run: Run) -> Figure:
    """Share of the exchanges that are made, in tenths of the run, and by pairs of rungs in its last third."""
    figure, (left, right) = panels(2, size=(4.0, 2.9))
    for method, look in method_styles(run.methods).items():
        swaps = exchanges(run, method)
        style: Style = look | {"markersize": 4, "markerfacecolor": "none", "linewidth": 1}
        parts = np.array_split(np.arange(swaps.shape[1]), min(10, swaps.shape[1]))
        shares = [np.nanmean(swaps[:, part]) for part in parts]
        left.plot([part.mean() + 1 for part in parts], shares, label=run.label(method), **style)
        late = swaps[:, -max(1, swaps.shape[1] // 3) :]
        defined = np.isfinite(late).any(axis=1)
        right.plot(np.arange(len(late))[defined] + 0.5, np.nanmean(late[defined], axis=1), **style)
    for axis in (left, right):
        axis.axhspan(0.3, 0.4, color="0.85", zorder=0)
    left.set(xlabel="rounds", ylabel="exchanges made", ylim=(-0.03, 1))
    left.legend()
    right.set_xlabel("between rungs j and j + 1")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    return finished(figure)


def thermostat_figure(run: Run) -> Figure:
    """Thermostats in the last third of the run over c / T, by rungs: means, and (c + b) / T as lines."""
    figure, (axis,) = panels(1, size=(5.6, 3.0), xlabel="rung", ylabel="thermostat over c / T")
    shown = [method for method in run.methods if "thermostat" in run.monitor(method)]
    for i, method in enumerate(shown):
        colour, marker = (method_styles(run.methods)[method][part] for part in ("color", "marker"))
        b, c = noise(run, method), run.config["c"]
        scaled, third = 1 + b / c, max(1, b.shape[1] // 3)
        expected, late = scaled[:, -third:].mean(axis=1), (thermostats(run, method) * scaled)[:, -third:]
        rungs, mean = np.arange(len(late)), late.mean(axis=1)
        axis.plot(rungs, expected, color=colour, linewidth=1)
        slow = c / temperatures(run, method)[:, 0]
        shift = np.sqrt(np.maximum(0.0, 1 - 2 * slow * expected))
        axis.plot(rungs, (1 - shift) / slow, "--", color=colour, linewidth=0.8)
        ends = [mean - late.min(axis=1), late.max(axis=1) - mean]
        style: Style = {"fmt": marker, "markersize": 3.5, "linewidth": 0.8, "label": run.label(method)}
        axis.errorbar(rungs + 0.12 * (i - (len(shown) - 1) / 2), mean, ends, color=colour, **style)
    levels(axis, 1, line="-")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
