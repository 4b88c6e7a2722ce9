"""Figure 2(a) of Wu, Wang & Wong (2020): how fast MHBT comes to a tempered Gaussian, and to which."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from mhrun.report.metrics import Metrics, MetricTable, estimate, value
from mhrun.report.plots import finished, levels, panels
from mhrun.report.vocabulary import Array, Axes, Figure, Run, method_styles

from ..shared.crossings import first_crossing

BINS = {2: 10, 5: 4}  # a side, by dimension; 10 for any other
HALF_WIDTH = 4.0  # of the histogram, in tempered standard deviations
REPEATS = 200  # pairs of histograms behind a floor
CLOSE = 0.1  # a distance above the floor that counts as converged
PAIRS = {"d2": ("mhbt_2", "full_2"), "d5": ("mhbt_5", "full_5")}
STARTS = {"near": ("mhbt_5_near", "full_5_near"), "far": ("mhbt_5_far", "full_5_far")}  # of d = 5
OTHERS = ("", "_c5", "_c30", "_m500", "_m5000")  # of one dimension in an experiment


class Truth(NamedTuple):
    """The tempered posterior of a method: N(mean, sd^2 I), and what the method samples in its place."""

    mean: Array  # (D,)
    sd: float
    c: float  # n / T
    ratio: float  # stationary variance of the chain over sd^2


def truth(run: Run, method: str) -> Truth:
    """Return what a method is to sample."""
    target, node = run.target_of(method), run.config["methods"][method]
    n, temperature = target.n, float(node["schedules"]["temperature"]["temperature"])
    x = target.data.fields["x"].double().numpy()
    pairing = node["kernel"]["pairing"]
    ratio = variance_ratio(n / temperature, int(pairing["m"]), n) if "m" in pairing else 1.0
    return Truth(n * x.mean(axis=0) / (n + 1), float(np.sqrt(temperature / (n + 1))), n / temperature, ratio)


def variance_ratio(c: float, m: int, n: int) -> float:
    """Return MHBT's stationary variance over that of the tempered posterior, for a Gaussian mean.

    Averaged over minibatches with replacement, exp(c mean_I l) has the precision c / (1 + c/m); drawing without
    replacement takes (m - 1) / (n - 1) of the second cumulant away. To first order in c/m this is
    1 + (c/m) (1 - m/n).
    """
    return 1 / (1 / (1 + c / m) + c / m * (m - 1) / (n - 1))


def shares(draws: Array, truth: Truth) -> Array:
    """Return the shares of draws (C, D) in the cells of a D-dimensional histogram, and last the share outside."""
    dim = draws.shape[1]
    bins = BINS.get(dim, 10)
    bin_index = np.floor((draws - truth.mean) / truth.sd * (bins / (2 * HALF_WIDTH)) + bins / 2)
    inside = ((bin_index >= 0) & (bin_index < bins)).all(axis=1)
    cell = np.where(inside, bin_index @ float(bins) ** np.arange(dim)[::-1], bins**dim).astype(np.int64)
    return np.bincount(cell, minlength=bins**dim + 1) / len(draws)


def probabilities(dim: int, ratio: float = 1.0) -> Array:
    """Return the probabilities of the cells, and last of what is outside, of a variance that is `ratio` as large."""
    bins = BINS.get(dim, 10)
    marginal = np.diff(stats.norm.cdf(np.linspace(-HALF_WIDTH, HALF_WIDTH, bins + 1), scale=np.sqrt(ratio)))
    joint = np.ones(1)
    for _ in range(dim):
        joint = np.outer(joint, marginal).ravel()
    return np.append(joint, max(0.0, 1 - joint.sum()))


def total_variation(one: Array, other: Array) -> float:
    """Return the total variation distance between two sets of shares."""
    return float(0.5 * np.abs(one - other).sum())


def bias(dim: int, ratio: float) -> float:
    """Return the distance between a chain's stationary distribution and the tempered posterior, both on the cells."""
    return total_variation(probabilities(dim), probabilities(dim, ratio))


@cache
def noise(dim: int, draws: int) -> float:
    """Return the distance between the histograms of two samples of the same distribution, on average."""
    rng = np.random.default_rng(0)
    p = probabilities(dim)
    pairs = rng.multinomial(draws, p, (REPEATS, 2)) / draws
    return float(0.5 * np.abs(pairs[:, 0] - pairs[:, 1]).sum(axis=-1).mean())


def curve(run: Run, method: str) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the steps at which draws are kept, and the distance at each, as the paper defines it.

    The total variation distance between the histograms of all chains and of as many draws of the tempered posterior.
    """
    return run.cached(_curves)[method]


def _curves(run: Run) -> dict[str, tuple[npt.NDArray[np.int64], Array]]:
    curves = {}
    for method in run.methods:
        draws, at = run.draws(method), truth(run, method)
        rng = np.random.default_rng(1)
        exact = at.mean + at.sd * rng.standard_normal(draws[:, 0].shape)
        expected = shares(exact, at)
        distances = [total_variation(shares(draws[:, s], at), expected) for s in range(draws.shape[1])]
        curves[method] = (run.draw_steps(method), np.array(distances))
    return curves


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable()
    for method in run.methods:
        steps, distances = curve(run, method)
        by_step = dict(zip(map(int, steps), map(float, distances), strict=True))
        table.series(method, "tv", by_step)
        table.add(method, _of_method(run, method))
    for name, (minibatch, full) in (PAIRS | STARTS).items():
        if minibatch in run.methods and full in run.methods:
            gap = curve(run, minibatch)[1] - table.number(f"{minibatch}.tv_bias") - curve(run, full)[1]
            slower = table.number(f"{minibatch}.steps_to_close") / table.number(f"{full}.steps_to_close")
            gaps: Metrics = {"largest_gap": float(np.abs(gap).max()), "last_gap": float(np.abs(gap[-1]))}
            table.add(name, gaps | {"slower": slower})
    variants = _others(run)
    if len(variants) > 1:
        # At the last step that all of them have, less what chance gives so many chains.
        last = min(int(curve(run, method)[0][-1]) for method in variants)
        at_end = [table.number(f"{m}.tv_{last}") - table.number(f"{m}.tv_noise") for m in variants]
        widest = max(truth(run, method).ratio for method in variants)
        table.add("robust", {"spread": max(at_end) - min(at_end), "widest": widest})
    return table


def _of_method(run: Run, method: str) -> Metrics:
    at, (steps, distances), last = truth(run, method), curve(run, method), run.draws(method)[:, -1]
    by_chance, by_bias = noise(last.shape[1], len(last)), bias(last.shape[1], at.ratio)
    return {
        "accept_rate": run.methods[method]["accept_rate"],
        "tv": float(distances[-1]),
        "tv_noise": by_chance,
        "tv_bias": by_bias,
        "over_floor": float(distances[-1] / (by_chance + by_bias)),
        "variance_ratio": estimate(np.square((last - at.mean) / at.sd).mean(axis=1)),
        "law_ratio": at.ratio,
        "steps_to_close": reached(steps, distances - (by_chance + by_bias), CLOSE),
    }


def _others(run: Run) -> list[str]:
    """Return the methods that are compared at several c_n and m, all of the dimension that has most of them."""
    by_dim = [
        [f"mhbt_{dim}{suffix}" for suffix in OTHERS if f"mhbt_{dim}{suffix}" in run.methods] for dim in (2, 5)
    ]
    return max(by_dim, key=len)


def reached(steps: npt.NDArray[np.int64], distances: Array, level: float) -> float:
    """Return the step at which a distance comes down to a level, interpolated between kept steps (in log steps).

    The first of them if it is there from the first; NaN if it never is.
    """
    return first_crossing(steps, -distances, -level, log=True)


def distance(run: Run) -> Figure:
    """Distance from the tempered posterior against iterations (Figure 2, a)."""
    figure, axes = panels(4, columns=2, size=(4.1, 3.0), ylabel="total variation distance")
    for axis, (name, pair) in zip(axes, (PAIRS | STARTS).items(), strict=True):
        _draw(axis, run, [method for method in pair if method in run.methods])
        axis.set_title(f"d = {name[1:]}" if name in PAIRS else f"d = 5, {name} start")
    return finished(figure)


def _draw(axis: Axes, run: Run, shown: list[str]) -> None:
    numbers, looks = run.cached(metrics), method_styles(run.methods)
    for method in shown:
        steps, distances = curve(run, method)
        label = run.label(method).split(", d =")[0]
        axis.plot(steps, distances, markersize=4, linewidth=1.2, label=label, **looks[method])
    if shown:
        floor, bias = (value(numbers[f"{shown[0]}.{part}"]) for part in ("tv_noise", "tv_bias"))
        levels(axis, floor)
        levels(axis, floor + bias, line=":")
        axis.legend()
    axis.set(xscale="log", yscale="log", xlabel="iteration", ylim=(None, 1.3))


def robust(run: Run) -> Figure:
    """The same for other c_n and other minibatch sizes."""
    figure, (axis,) = panels(1, size=(5.2, 3.4), ylabel="total variation distance")
    shown = _others(run)
    _draw(axis, run, shown)
    levels(axis, *{value(run.cached(metrics)[f"{method}.tv_noise"]) for method in shown[1:]}, color="grey")
    return finished(figure)
