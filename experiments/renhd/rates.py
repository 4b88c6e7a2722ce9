"""Section 4.2 of Luo et al. (2020): how often replicas of a network exchange, and what an exchange reads."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS
from mhrun.report.tables import shown

from ..shared.measures import Metrics, value
from .replicas import largest_dim, swap_rate

Array = npt.NDArray[np.floating]


def exchanges(run: Run, method: str) -> Array:
    """Return whether rungs j and j + 1 exchanged after each round (R - 1, S): 1 or 0, NaN if none was offered."""
    with run.trace(method) as trace:
        coded = trace["sample_stats"]["exchange"].to_numpy()  # (R, S)
    even = coded[0] > 0
    found = np.full((len(coded) - 1, coded.shape[1]), np.nan)
    for j in range(len(found)):
        offered = even == (j % 2 == 0)
        found[j, offered] = coded[j, offered] == 2
    return found


def read(run: Run, method: str) -> Array:
    """Return the share of all data that a chain reads for each of its exchanges (E,)."""
    with run.trace(method) as trace:
        stats = trace["sample_stats"]
        coded, total = stats["exchange"].to_numpy(), stats["n_lik"].to_numpy()
    each = np.diff(total, axis=1, prepend=0)
    found: Array = each[coded > 0] / run.target.n
    return found


def temperatures(run: Run, method: str) -> Array:
    """Return the temperatures of the rungs (C, 1)."""
    found: Array = run.config["ratio"] ** np.arange(run.rungs(method), dtype=float)[:, None]
    return found


def noise(run: Run, method: str) -> Array:
    """Return b = e V / 2 on each rung at each look (C, L): V is the measured variance of the minibatch gradient.

    Luo et al. (2020), equations 2 and 20: what minibatches add to the momenta in a step has the variance 2 b e.
    """
    told = run.evaluation(method)
    found: Array = (told["step_size"] * told[f"variance_{run.config['m']}"]).to_numpy() / 2
    return found


def thermostats(run: Run, method: str) -> Array:
    """Return thermostats over (c + b) / T, their mean by Theorem 1, on each rung at each look (C, L)."""
    found: Array = run.evaluation(method)["thermostat"].to_numpy() / (
        (run.config["c"] + noise(run, method)) / temperatures(run, method)
    )
    return found


def metrics(run: Run) -> Metrics:
    """Return rates early and late, what an exchange reads, the dimension that a rate stands for, and thermostats."""
    found: Metrics = {}
    for method in run.methods:
        made = exchanges(run, method)
        third = max(1, made.shape[1] // 3)
        for name, part in (("early", made[:, :third]), ("late", made[:, -third:]), ("all", made)):
            found[f"{method}.{name}"] = _share(part)
        found[f"{method}.read"] = float(read(run, method).mean())
        rate = value(found[f"{method}.late"])
        known = rate > 0.005  # below, no ladder of this size tells rates apart
        found[f"{method}.dimension"] = float(largest_dim(rate, run.config["ratio"])) if known else math.nan
        found[f"{method}.predicted"] = predicted(run)
        looks = run.evaluation(method)
        found |= {f"{method}.{name}": number for name, number in _of_thermostats(run, method, third).items()}
        errors = looks["error"].to_numpy()
        found[f"{method}.coldest"], found[f"{method}.hottest"] = float(errors[0, -1]), float(errors[-1, -1])
    return found


def _of_thermostats(run: Run, method: str, last: int) -> Metrics:
    """Return what the last looks say of the thermostats; NaN where there are none."""
    if "thermostat" not in run.evaluation(method):
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


def _share(made: Array) -> Estimate:
    """Return the share that was made, with the standard error of as many independent exchanges."""
    seen = made[np.isfinite(made)]
    share = float(seen.mean()) if len(seen) else math.nan
    return Estimate(share, math.sqrt(share * (1 - share) / max(1, len(seen))))


def table(run: Run) -> pd.DataFrame:
    """Share of the exchanges that are made, first and last third of the rounds, and what an exchange reads.

    As if harmonic: the dimension in which two harmonic replicas in equilibrium, at this ratio of temperatures,
    exchange at the late rate; predicted: the rate of such replicas in as many dimensions as the network has. c / b:
    last third of the looks, over all rungs; the paper wants it above 10. Thermostats: over (c + b) / T, their mean by
    Theorem 1, over the last third and all rungs; root mean square distance from 1 on the hottest. Error: of the last
    state on the test images, per cent.
    """
    columns = {
        "early": "early",
        "late": "late",
        "predicted": "predicted",
        "as if harmonic in": "dimension",
        "share of all data read": "read",
        "c / b": "c_over_b",
        "thermostats": "thermostat",
        "hottest, distance": "swing",
        "error at T = 1": "coldest",
        "error on the hottest rung": "hottest",
    }
    return run.by_method(run.once(metrics), columns)


def figure(run: Run) -> Figure:
    """Share of the exchanges that are made, in tenths of the run, and by pairs of rungs in its last third.

    Grey: what the paper reports of its networks.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 2.9), sharey=True, layout="constrained")
    for method, colour, marker in zip(run.methods, COLOURS, "osD^v*P", strict=False):
        made = exchanges(run, method)
        parts = np.array_split(np.arange(made.shape[1]), min(10, made.shape[1]))
        along = [np.nanmean(made[:, part]) for part in parts]
        left.plot(
            [part.mean() + 1 for part in parts],
            along,
            marker=marker,
            color=colour,
            markersize=4,
            markerfacecolor="none",
            linewidth=1,
            label=run.label(method),
        )
        late = made[:, -max(1, made.shape[1] // 3) :]
        seen = np.isfinite(late).any(axis=1)
        right.plot(
            np.arange(len(late))[seen] + 0.5,
            np.nanmean(late[seen], axis=1),
            marker=marker,
            color=colour,
            markersize=4,
            markerfacecolor="none",
            linewidth=1,
        )
    for axis in (left, right):
        axis.axhspan(0.3, 0.4, color="0.85", zorder=0)
    left.set(xlabel="rounds", ylabel="exchanges made", ylim=(-0.03, 1))
    left.legend()
    right.set(xlabel="between rungs j and j + 1")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def thermostat_figure(run: Run) -> Figure:
    """Thermostats in the last third of the run over c / T, by rungs: means, and (c + b) / T as lines.

    Bars: the smallest and the largest of the looks. b is measured on each rung. Dashed: the root of s (1 - s / 2) =
    (c + b) / T, where the explicit scheme holds the kinetic energy of free motion.
    """
    figure, axis = plt.subplots(figsize=(5.6, 3.0), layout="constrained")
    shown = [method for method in run.methods if "thermostat" in run.evaluation(method)]
    for i, (method, colour) in enumerate(zip(shown, COLOURS, strict=False)):
        b = noise(run, method)
        third = max(1, b.shape[1] // 3)
        over = 1 + b / run.config["c"]
        expected = over[:, -third:].mean(axis=1)
        seen = (thermostats(run, method) * over)[:, -third:]
        rungs = np.arange(len(seen))
        mean = seen.mean(axis=1)
        axis.plot(rungs, expected, color=colour, linewidth=1)
        slow = run.config["c"] / temperatures(run, method)[:, 0]
        shift = np.sqrt(np.maximum(0.0, 1 - 2 * slow * expected))
        axis.plot(rungs, (1 - shift) / slow, "--", color=colour, linewidth=0.8)
        axis.errorbar(
            rungs + 0.12 * (i - (len(shown) - 1) / 2),
            mean,
            [mean - seen.min(axis=1), seen.max(axis=1) - mean],
            fmt="osD^"[i % 4],
            markersize=3.5,
            linewidth=0.8,
            color=colour,
            label=run.label(method),
        )
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set(xlabel="rung", ylabel="thermostat over c / T")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    if "renhd" not in run.methods:
        return []
    found, config, n = run.once(metrics), run.config, run.target.n
    dim = run.target.dim
    return [
        "The paper has a recurrent network of about 90,000 weights on Fashion-MNIST; here a perceptron of "
        f"{dim:,}, with the same tau, M, e, c and N, on {n:,} images.",
        f"An exchange reads {value(found['renhd.read']):.0%} of the data: the variance of its log-ratio is below "
        f"0.2 only when nearly all are read. With 256 of 60,000 images at tau = {config['ratio']:g} that would "
        "need a variance of a log-likelihood difference below 5e-7.",
        "Two replicas in equilibrium exchange at 0.3 in 50 to 70 dimensions of a harmonic potential and "
        "practically never in 10^4 (appendix F; experiment compensation). A rate like the paper's is therefore no sign "
        "of rungs in equilibrium: experiment exchange_step_sizes has the same ladder at e, e / 4 and e / 20.",
        f"c is {value(found['renhd.c_over_b']):.1f} times b, where the paper wants more than 10. Thermostats are "
        f"at {value(found['renhd.thermostat']):.2f} of (c + b) / T, their mean by Theorem 1.",
    ]


def step_notes(run: Run) -> list[str]:
    """What a reader should know of the runs at smaller step sizes."""
    found, config = run.once(metrics), run.config
    rate = f"of {predicted(run):.0e}" if predicted(run) else "below 1e-6"
    lines = [
        f"A perceptron of {run.target.dim:,} weights on {run.target.n:,} images, with the paper's tau, M, c and N. "
        f"e is {config['step_size']:.2g}: the learning rate of the paper's e = 5e-6 at 60,000 images.",
        "In equilibrium, neighbours in a harmonic potential of as many dimensions exchange at a rate "
        f"{rate}, by quadrature; in the 89,802 of the paper's recurrent network more rarely still.",
    ]
    for method in run.methods:
        node = config["methods"][method]
        e = float(node["schedules"]["step_size"]["step_size"])
        relaxation = config["c"] / e * float((node.get("model") or config["model"])["prior_variance"])
        lines.append(
            f"{run.label(method)}: exchanges are made at a rate of {shown(found[f'{method}.late'])} in the last third; "
            f"c is {value(found[f'{method}.c_over_b']):.1f} times b; thermostats are at "
            f"{value(found[f'{method}.thermostat']):.3f} of (c + b) / T. On the coldest rung a direction that the data "
            f"do not determine needs {relaxation:,.0f} steps to relax and a thermostat {config['c'] / e:,.0f}; there "
            f"are {run.methods[method]['steps']:,}."
        )
    return lines
