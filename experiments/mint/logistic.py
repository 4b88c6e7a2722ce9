"""Section 4.2 and appendix B of Li & Wong (2017): MINT on logistic regression, two digits of MNIST."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy import stats

import mhrun
from mhrun.build import build
from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.classify import accuracy, running_mean
from ..shared.measures import Metrics, estimate, in_order, of_sizes, value

Array = npt.NDArray[Any]

CURVES = ("mint", "tempered_mcmc", "mcmc")
TABLE = ("mint", "mhminibatch", "austere_nc", "austere_c", "mhsublhd")
LEVEL = 0.95
BATCHES = 5000  # minibatches of Figure 2, left
LOOKED_AT = 300  # steps from a chain's end on that step lengths are measured in


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim or a table speaks of."""
    found: Metrics = {}
    for method in run.methods:
        found |= of_sizes(run, method)
        right, epochs = accuracy(run, run.draws(method)), passes(run, method)
        of_mean = accuracy(run, running_mean(run.draws(method)))
        reach = [_reached(epochs, chain) for chain in right]
        more: Metrics = {
            "final": estimate(right[:, -1]),
            "best": float(right.mean(axis=0).max()),
            "of_mean": estimate(of_mean[:, -1]),
            "first": float(epochs[0]),
            "x95": _reached(epochs, right.mean(axis=0)),
            "x95_slowest": float(np.max(reach)),
            "x95_fastest": float(np.fmin.reduce(reach)),
            "seconds95": _reached(_seconds(run, method), right.mean(axis=0)),
            "length": step_length(run, method),
        }
        found |= {f"{method}.{name}": number for name, number in more.items()}
    found["order.size"] = in_order(found, [f"{method}.size" for method in TABLE])
    found["order.x95"] = in_order(found, [f"{method}.x95" for method in CURVES])
    for other in CURVES[1:]:
        for name in ("x95", "seconds95", "length"):
            if f"mint.{name}" in found and f"{other}.{name}" in found:
                over = value(found[f"{other}.{name}"]) / value(found[f"mint.{name}"])
                found[f"{other}.{name}_ratio"] = over
    for name, (_batches, closeness, skewness) in run.once(minibatch_noise).items():
        found |= {f"noise.{name}.ks": closeness, f"noise.{name}.skewness": skewness}
    return found


def passes(run: Run, method: str) -> Array:
    """Return the passes through the data up to each kept draw (S,): a MINT step is m/n of one."""
    return run.at_draws(method, "batch_size").mean(axis=0) / run.target.n


def _seconds(run: Run, method: str) -> Array:
    return run.at_draws(method, "wall_s")


def _reached(spent: Array, right: Array) -> float:
    above = np.flatnonzero(right >= LEVEL)
    return float(spent[above[0]]) if len(above) else float("nan")


def step_length(run: Run, method: str) -> float:
    """Return the mean length of the accepted moves, in steps that go on from the last draws."""
    node = run.config["methods"][method]
    schedules = node["schedules"]
    if any(schedules.get(key, {}).get(key) is None for key in ("step_size", "temperature")):
        return float("nan")  # not constant
    said = {key: schedules[key][key] for key in ("step_size", "temperature")}
    trace = mhrun.sample(
        run.target.model,
        run.target.data,
        build(node["kernel"], f"methods.{method}.kernel"),
        temper=run.target.temper,
        start=run.draws(method)[:, -1],
        chains=len(run.draws(method)),
        steps=min(LOOKED_AT, node.get("steps") or run.config["steps"]),
        warmup=0,
        **said,
    )
    theta = trace["posterior"]["theta"].to_numpy()
    moved = np.linalg.norm(np.diff(theta, axis=1), axis=2)
    return float(moved[moved > 0].mean()) if (moved > 0).any() else float("nan")


def minibatch_noise(run: Run) -> dict[str, tuple[Array, float, float]]:
    """Return, at points of the first chain, what the mean log-likelihoods of minibatches are off by.

    For each point: sqrt(m) (minibatch mean - mean of all) of 5000 minibatches, how far its distribution
    function is from the normal one of the same mean and variance, and its skewness.
    """
    m, rng = int(run.config["m"]), np.random.default_rng(0)
    method = "mint" if "mint" in run.methods else next(iter(run.methods))
    draws, steps = run.draws(method), run.draw_steps(method)
    early = int(np.searchsorted(steps, min(500, steps[-1])))
    points = {
        "random": torch.from_numpy(0.05 * rng.standard_normal(run.target.dim)),
        "early": torch.from_numpy(draws[0, early]),
        "late": torch.from_numpy(draws[0, -1]),
    }
    found = {}
    for name, theta in points.items():
        rows = run.target.data.part(0, run.target.n)
        each = run.target.model.log_lik(theta[None], rows)[0].double().numpy()
        chosen = np.array([rng.choice(len(each), m, replace=False) for _ in range(BATCHES)])
        t = np.sqrt(m) * (each[chosen].mean(axis=1) - each.mean())
        closeness = stats.kstest((t - t.mean()) / t.std(), "norm").statistic
        found[name] = (t, float(closeness), float(stats.skew(t)))
    return found


def sizes(run: Run) -> pd.DataFrame:
    """Mean minibatch sizes (Table 1).

    With standard errors over runs; the other tests with the settings of Seita et al. (2017). "Besides": data per
    decision that are read for a statistic of all data, which the papers leave out.
    """
    found = run.once(metrics)
    names = {"minibatch": "size", "sd over runs": "size_sd", "besides, per decision": "aside"}
    return run.by_method(found, names | {"acceptance": "accept_rate"})


def learning(run: Run) -> pd.DataFrame:
    """What it costs to learn the digits (Figures 2 right and 5).

    Passes through the data and seconds (of all runs together) until 95 % of the test images are right, by the mean
    over runs of single draws; the fastest and the slowest run; accuracy of the last draw and of the mean of all draws;
    the mean length of an accepted step, at the end.
    """
    names = {
        "passes to 95 %": "x95",
        "fastest run": "x95_fastest",
        "slowest run": "x95_slowest",
        "seconds to 95 %": "seconds95",
        "last draw": "final",
        "mean of draws": "of_mean",
        "accepted step": "length",
        "acceptance": "accept_rate",
    }
    return run.by_method(run.once(metrics), names)


def normal(run: Run) -> pd.DataFrame:
    """How normal the noise of a minibatch is (Figure 2, left).

    Of sqrt(m) (minibatch mean - mean of all data) of the log-likelihood, 5000 minibatches: the largest distance of its
    distribution function from the normal one with the same mean and variance, and its skewness.
    """
    rows = {
        name: {"distance": closeness, "skewness": skewness}
        for name, (_t, closeness, skewness) in run.once(minibatch_noise).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def normality(run: Run) -> Figure:
    """The noise of a minibatch's mean log-likelihood (Figure 2, left).

    5000 minibatches, at a random theta, at one from early in a chain and at its end; the line is the normal
    density with the same mean and variance. The further a chain has come, the less normal: few data are far off.
    """
    found = run.once(minibatch_noise)
    figure, axes = plt.subplots(1, len(found), figsize=(3.1 * len(found), 2.8))
    for axis, (name, (t, closeness, _skewness)) in zip(axes, found.items(), strict=True):
        axis.hist(t, bins=60, density=True, color=COLOURS[0], alpha=0.5)
        at = np.linspace(t.min(), t.max(), 200)
        axis.plot(at, stats.norm.pdf(at, t.mean(), t.std()), color=COLOURS[1])
        axis.set(title=f"{name}: distance {closeness:.3f}", xlabel=r"$\sqrt{m}(\hat\mu - \mu)$")
        axis.set_yticks([])
    return figure


def accuracy_figure(run: Run) -> Figure:
    """Accuracy on the test images against passes through the data (Figure 2, right).

    Mean over runs with one standard error. Left: of single draws; right: of the mean of the draws so far. Dashed: at
    the higher temperature.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 3.4), sharey=True)
    for method, colour, line in (
        *zip(CURVES, COLOURS, ("-",) * 3, strict=False),
        ("mint_hot", COLOURS[0], "--"),
        ("tempered_hot", COLOURS[1], "--"),
    ):
        if method not in run.methods:
            continue
        draws = run.draws(method)
        for axis, theta in zip(axes, (draws, running_mean(draws)), strict=True):
            right = accuracy(run, theta)
            mean, error = right.mean(axis=0), right.std(axis=0) / np.sqrt(max(1, len(right) - 1))
            x = passes(run, method)
            axis.plot(x, mean, color=colour, linestyle=line, linewidth=1.2, label=run.label(method))
            axis.fill_between(x, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
    for axis, title in zip(axes, ("single draws", "mean of the draws so far"), strict=True):
        axis.axhline(LEVEL, color="grey", linestyle=":", linewidth=1)
        axis.set(xscale="log", xlabel="passes through the data", ylim=(0.5, 1.0), title=title)
    axes[0].set_ylabel("accuracy")
    axes[1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def seconds(run: Run) -> Figure:
    """Accuracy on the test images against seconds (Figure 5).

    Of single draws, mean over runs; seconds of all runs together, on the machine that the run names.
    """
    figure, axis = plt.subplots(figsize=(4.8, 3.4))
    for method, colour in zip(CURVES, COLOURS, strict=False):
        if method in run.methods:
            right = accuracy(run, run.draws(method)).mean(axis=0)
            axis.plot(_seconds(run, method), right, color=colour, linewidth=1.2, label=run.label(method))
    axis.set(xscale="log", xlabel="seconds", ylabel="accuracy", ylim=(0.5, 1.0))
    axis.legend(loc="lower right")
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found = run.once(metrics)
    flat = run.config["model"]["prior_variance"] is None
    first = (
        "With the flat prior the posterior does not exist: a plane separates the classes, and the weights grow "
        "without end (so no step size keeps 30 % accepted for long). The step sizes are those that the paper prints "
        "as the average accepted ones."
        if flat
        else "The prior is N(0, I) on the weights, not tempered: the paper's flat one has no posterior here, as a "
        "plane separates the classes. Its own run stands in mint_logistic_flat."
    )
    return [
        first,
        f"At a random theta the noise of a minibatch is nearly normal, where a chain is it is not (distances "
        f"{value(found['noise.random.ks']):.3f} and {value(found['noise.late.ks']):.3f}): most images are told "
        "apart well, and few badly.",
        "The temperature is not printed: T = n / m^0.99 follows its section 3.4; n / m^0.5 is the hotter one.",
        f"A draw of MINT is right on {_percent(found, 'mint.final')} of the test images, the mean of its draws on "
        f"{_percent(found, 'mint.of_mean')}; the paper says more than 99 % and not of which of the two.",
    ]


def _percent(found: Metrics, name: str) -> str:
    number: Estimate | float = found.get(name, float("nan"))
    return f"{100 * value(number):.1f} %"
