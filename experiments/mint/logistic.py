"""Section 4.2 and appendix B of Li & Wong (2017): MINT on logistic regression, two digits of MNIST."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats

import mhrun
from mhrun.build import build
from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import band, legend_right, levels, panels
from mhrun.report.vocabulary import COLOURS, Array, Figure, Run, Style, method_styles

from ..shared.classify import accuracy, running_mean
from ..shared.measures import in_order, of_sizes

CURVES = ("mint", "tempered_mcmc", "mcmc")
TABLE = ("mint", "mhminibatch", "austere_nc", "austere_c", "mhsublhd")
LEVEL = 0.95
BATCHES = 5000  # minibatches of Figure 2, left
LAST_STEPS = 300  # steps from a chain's end on that step lengths are measured in


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable.by_method(run, _of_method)
    table["order.size"] = in_order(table, [f"{method}.size" for method in TABLE])
    table["order.x95"] = in_order(table, [f"{method}.x95" for method in CURVES])
    for rival in CURVES[1:]:
        for name in ("x95", "seconds95", "length"):
            if f"mint.{name}" in table and f"{rival}.{name}" in table:
                quotient = table.number(f"{rival}.{name}") / table.number(f"mint.{name}")
                table.add(rival, {f"{name}_ratio": quotient})
    for name, noise in run.cached(minibatch_noise).items():
        table |= {f"noise.{name}.ks": noise.distance, f"noise.{name}.skewness": noise.skewness}
    return table


def _of_method(run: Run, method: str) -> Metrics:
    right, epochs = accuracy(run, run.draws(method)), passes(run, method)
    of_mean = accuracy(run, running_mean(run.draws(method)))
    arrivals, mean = [_reached(epochs, chain) for chain in right], right.mean(axis=0)
    return of_sizes(run, method) | {
        "final": estimate(right[:, -1]),
        "best": float(mean.max()),
        "of_mean": estimate(of_mean[:, -1]),
        "first": float(epochs[0]),
        "x95": _reached(epochs, mean),
        "x95_slowest": float(np.max(arrivals)),
        "x95_fastest": float(np.fmin.reduce(arrivals)),
        "seconds95": _reached(_seconds(run, method), mean),
        "length": step_length(run, method),
    }


class Noise(NamedTuple):
    """The noise of minibatch means at one point, sqrt(m) (minibatch mean - mean of all)."""

    t: Array  # (B,) of B minibatches
    distance: float  # of its distribution function from the normal one of the same mean and variance
    skewness: float


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
    settings = {key: schedules[key][key] for key in ("step_size", "temperature")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a few steps from each chain's end are not to converge
        trace = mhrun.sample(
            run.target.model,
            run.target.data,
            build(node["kernel"], f"methods.{method}.kernel"),
            temper=run.target.temper,
            start=run.draws(method)[:, -1],
            chains=len(run.draws(method)),
            steps=min(LAST_STEPS, node.get("steps") or run.config["steps"]),
            warmup=0,
            **settings,
        )
    theta = trace["posterior"]["theta"].to_numpy()
    lengths = np.linalg.norm(np.diff(theta, axis=1), axis=2)
    return float(lengths[lengths > 0].mean()) if (lengths > 0).any() else float("nan")


def minibatch_noise(run: Run) -> dict[str, Noise]:
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
    noises = {}
    for name, theta in points.items():
        rows = run.target.data.part(0, run.target.n)
        values = run.target.model.log_lik(theta[None], rows)[0].double().numpy()
        chosen = np.array([rng.choice(len(values), m, replace=False) for _ in range(BATCHES)])
        t = np.sqrt(m) * (values[chosen].mean(axis=1) - values.mean())
        closeness = stats.kstest((t - t.mean()) / t.std(), "norm").statistic
        noises[name] = Noise(t, float(closeness), float(stats.skew(t)))
    return noises


def normality(run: Run) -> Figure:
    """The noise of a minibatch's mean log-likelihood (Figure 2, left)."""
    noises = run.cached(minibatch_noise)
    figure, axes = panels(
        len(noises), size=(3.1, 2.8), share="", xlabel=r"$\sqrt{m}(\hat\mu - \mu)$", yticks=[]
    )
    for axis, (name, noise) in zip(axes, noises.items(), strict=True):
        axis.hist(noise.t, bins=60, density=True, color=COLOURS[0], alpha=0.5)
        at = np.linspace(noise.t.min(), noise.t.max(), 200)
        axis.plot(at, stats.norm.pdf(at, noise.t.mean(), noise.t.std()), color=COLOURS[1])
        axis.set_title(f"{name}: distance {noise.distance:.3f}")
    return figure


def accuracy_figure(run: Run) -> Figure:
    """Accuracy on the test images against passes through the data (Figure 2, right)."""
    labels: Style = {"xlabel": "passes through the data", "ylabel": "accuracy"}
    figure, axes = panels(2, size=(4.7, 3.4), xscale="log", ylim=(0.5, 1.0), **labels)
    looks = method_styles(run.methods)
    for method in (*CURVES, "mint_hot", "tempered_hot"):
        if method not in run.methods:
            continue
        line = "-" if method in CURVES else "--"
        draws = run.draws(method)
        for axis, theta in zip(axes, (draws, running_mean(draws)), strict=True):
            style: Style = {"color": looks[method]["color"], "linestyle": line, "label": run.label(method)}
            band(axis, passes(run, method), accuracy(run, theta), **style)
    for axis, title in zip(axes, ("single draws", "mean of the draws so far"), strict=True):
        levels(axis, LEVEL, line=":", color="grey")
        axis.set_title(title)
    legend_right(axes[1])
    return figure


def seconds(run: Run) -> Figure:
    """Accuracy on the test images against seconds (Figure 5)."""
    labels: Style = {"xlabel": "seconds", "ylabel": "accuracy"}
    figure, (axis,) = panels(1, size=(4.8, 3.4), xscale="log", ylim=(0.5, 1.0), **labels)
    looks = method_styles(run.methods)
    for method in CURVES:
        if method in run.methods:
            colour, right = looks[method]["color"], accuracy(run, run.draws(method)).mean(axis=0)
            axis.plot(_seconds(run, method), right, color=colour, linewidth=1.2, label=run.label(method))
    axis.legend(loc="lower right")
    return figure
