"""Figure 2(a) of Wu, Wang & Wong (2020): how fast MHBT comes to a tempered Gaussian, and to which."""

from __future__ import annotations

from functools import cache
from itertools import cycle
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, value
from .common import table

Array = npt.NDArray[np.floating]

BINS = {2: 10, 5: 4}  # a side, by dimension; 10 for any other
HALF_WIDTH = 4.0  # of the histogram, in tempered standard deviations
REPEATS = 200  # pairs of histograms behind a floor
CLOSE = 0.1  # a distance above the floor that counts as converged
PAIRS = {"d2": ("mhbt_2", "full_2"), "d5": ("mhbt_5", "full_5")}
STARTS = {"near": ("mhbt_5_near", "full_5_near"), "far": ("mhbt_5_far", "full_5_far")}  # of d = 5
ROBUST = tuple(
    f"mhbt_{dim}{other}" for dim in (2, 5) for other in ("", "_c5", "_c30", "_m500", "_m5000")
)  # of one dimension in an experiment


class Truth(NamedTuple):
    """The tempered posterior of a method: N(mean, sd^2 I), and what the method samples in its place."""

    mean: Array  # (D,)
    sd: float
    c: float  # n / T
    ratio: float  # variance of the law of the chain over sd^2


def truth(run: Run, method: str) -> Truth:
    """Return what a method is to sample."""
    target, node = run.target_of(method), run.config["methods"][method]
    n, temperature = target.n, float(node["schedules"]["temperature"]["temperature"])
    x = target.data.fields["x"].double().numpy()
    pairing = node["kernel"]["pairing"]
    ratio = variance_ratio(n / temperature, int(pairing["m"]), n) if "m" in pairing else 1.0
    return Truth(n * x.mean(axis=0) / (n + 1), float(np.sqrt(temperature / (n + 1))), n / temperature, ratio)


def variance_ratio(c: float, m: int, n: int) -> float:
    """Return the variance of MHBT's law over that of the tempered posterior, for a Gaussian mean.

    Averaged over minibatches with replacement, exp(c mean_I l) has the precision c / (1 + c/m); drawing without
    replacement takes (m - 1) / (n - 1) of the second cumulant away. To first order in c/m this is
    1 / (1 - (c/m) (1 - m/n)).
    """
    return 1 / (1 / (1 + c / m) + c / m * (m - 1) / (n - 1))


def shares(draws: Array, truth: Truth) -> Array:
    """Return the shares of draws (C, D) in the cells of a D-dimensional histogram, and last the share outside."""
    dim = draws.shape[1]
    bins = BINS.get(dim, 10)
    place = np.floor((draws - truth.mean) / truth.sd * (bins / (2 * HALF_WIDTH)) + bins / 2)
    inside = ((place >= 0) & (place < bins)).all(axis=1)
    cell = np.where(inside, place @ float(bins) ** np.arange(dim)[::-1], bins**dim).astype(np.int64)
    return np.bincount(cell, minlength=bins**dim + 1) / len(draws)


def probabilities(dim: int, ratio: float = 1.0) -> Array:
    """Return the probabilities of the cells, and last of what is outside, of a variance that is `ratio` as large."""
    bins = BINS.get(dim, 10)
    side = np.diff(stats.norm.cdf(np.linspace(-HALF_WIDTH, HALF_WIDTH, bins + 1), scale=np.sqrt(ratio)))
    inside = np.ones(1)
    for _ in range(dim):
        inside = np.outer(inside, side).ravel()
    return np.append(inside, max(0.0, 1 - inside.sum()))


def total_variation(one: Array, other: Array) -> float:
    """Return the total variation distance between two sets of shares."""
    return float(0.5 * np.abs(one - other).sum())


def bias(dim: int, ratio: float) -> float:
    """Return the distance between the law of a chain and the tempered posterior, both on the cells."""
    return total_variation(probabilities(dim), probabilities(dim, ratio))


@cache
def noise(dim: int, draws: int) -> float:
    """Return the distance between the histograms of two samples of one law, on average."""
    rng = np.random.default_rng(0)
    p = probabilities(dim)
    pairs = rng.multinomial(draws, p, (REPEATS, 2)) / draws
    return float(0.5 * np.abs(pairs[:, 0] - pairs[:, 1]).sum(axis=-1).mean())


def curve(run: Run, method: str) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the steps that are looked at, and the distance at each, as the paper has it.

    The total variation distance between the histograms of all chains and of as many draws of the tempered posterior.
    """
    return run.once(_curves)[method]


def _curves(run: Run) -> dict[str, tuple[npt.NDArray[np.int64], Array]]:
    found = {}
    for method in run.methods:
        draws, at = run.draws(method), truth(run, method)
        rng = np.random.default_rng(1)
        exact = at.mean + at.sd * rng.standard_normal(draws[:, 0].shape)
        expected = shares(exact, at)
        distances = [total_variation(shares(draws[:, s], at), expected) for s in range(draws.shape[1])]
        found[method] = (run.draw_steps(method), np.array(distances))
    return found


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim or a table speaks of."""
    found: Metrics = {}
    for method in run.methods:
        at, (steps, distances) = truth(run, method), curve(run, method)
        last = run.draws(method)[:, -1]
        dim = last.shape[1]
        floor = noise(dim, len(last)), bias(dim, at.ratio)
        squares = np.square((last - at.mean) / at.sd).mean(axis=1)
        more: Metrics = {f"tv_{step}": float(tv) for step, tv in zip(steps, distances, strict=True)}
        more |= {
            "accept_rate": run.methods[method]["accept_rate"],
            "tv": float(distances[-1]),
            "tv_noise": floor[0],
            "tv_bias": floor[1],
            "over_floor": float(distances[-1] / sum(floor)),
            "variance_ratio": Estimate(
                float(squares.mean()), float(squares.std(ddof=1) / np.sqrt(len(squares)))
            ),
            "law_ratio": at.ratio,
            "steps_to_close": reached(steps, distances - sum(floor), CLOSE),
        }
        found |= {f"{method}.{name}": number for name, number in more.items()}
    for name, (mine, full) in (PAIRS | STARTS).items():
        if mine in run.methods and full in run.methods:
            gap = curve(run, mine)[1] - value(found[f"{mine}.tv_bias"]) - curve(run, full)[1]
            found[f"{name}.largest_gap"] = float(np.abs(gap).max())
            found[f"{name}.last_gap"] = float(np.abs(gap[-1]))
            ends = (value(found[f"{method}.steps_to_close"]) for method in (mine, full))
            found[f"{name}.slower"] = next(ends) / next(ends)
    others = _others(run)
    if len(others) > 1:
        # At the last step that all of them have, less what chance gives so many chains.
        last_step = min(int(curve(run, method)[0][-1]) for method in others)
        at_end = [value(found[f"{m}.tv_{last_step}"]) - value(found[f"{m}.tv_noise"]) for m in others]
        found["robust.spread"] = max(at_end) - min(at_end)
        found["robust.widest"] = max(truth(run, method).ratio for method in others)
    return found


def _others(run: Run) -> list[str]:
    """Return the methods that are compared at several c_n and m, all of the dimension that has most of them."""
    by_dim = [
        [method for method in ROBUST if method.startswith(f"mhbt_{dim}") and method in run.methods]
        for dim in (2, 5)
    ]
    return max(by_dim, key=len)


def reached(steps: npt.NDArray[np.int64], distances: Array, level: float) -> float:
    """Return the step at which a distance comes down to a level, between two that were looked at (log steps).

    The first of them if it is there from the first; NaN if it never is.
    """
    below = np.flatnonzero(distances <= level)
    if not len(below) or below[0] == 0:
        return float(steps[0]) if len(below) else float("nan")
    i = int(below[0])
    share = (distances[i - 1] - level) / (distances[i - 1] - distances[i])
    return float(np.exp(np.log(steps[i - 1]) + share * np.log(steps[i] / steps[i - 1])))


def distances(run: Run) -> pd.DataFrame:
    """Distance from the tempered posterior after so many steps (Figure 2, a).

    The total variation distance between the histogram of all chains and that of as many draws of the tempered
    posterior; the same draws at every step, 10 cells a side in two dimensions and 4 in five, on 4 standard
    deviations to each side, and one cell for all that is outside. Then what chance alone gives; the distance between
    the law that the chain has and the tempered posterior; and the step at which the distance comes down to 0.1 above
    the sum of the two.
    """
    found = run.once(metrics)
    steps = sorted({int(step) for method in run.methods for step in curve(run, method)[0]})
    names = {f"{step:,}": f"tv_{step}" for step in steps}
    names |= {"by chance": "tv_noise", "bias": "tv_bias", "comes down at": "steps_to_close"}
    return table(run, found, names)


def laws(run: Run) -> pd.DataFrame:
    """The variance of the last draws over that of the tempered posterior, and what the law of the chain has.

    Mean over chains and coordinates, with its standard error; the law in closed form.
    """
    names = {"variance ratio": "variance_ratio", "in closed form": "law_ratio", "acceptance": "accept_rate"}
    return run.by_method(run.once(metrics), names)


def distance(run: Run) -> Figure:
    """Distance from the tempered posterior against iterations (Figure 2, a).

    Total variation distance between histograms of all chains and of as many draws of the tempered posterior. Above:
    from a start 5 of its standard deviations away in each coordinate; below: 1 away (near) and 9 away (far). Dashed:
    what chance alone gives; dotted: with the bias of the stored minibatches beside it.
    """
    panels = PAIRS | STARTS
    figure, axes = plt.subplots(2, 2, figsize=(8.2, 6.0), sharey=True)
    for axis, (name, pair) in zip(axes.flat, panels.items(), strict=True):
        shown = [method for method in pair if method in run.methods]
        _draw(axis, run, shown)
        axis.set_title(f"d = {name[1:]}" if name in PAIRS else f"d = 5, {name} start")
    for row in axes:
        row[0].set_ylabel("total variation distance")
    figure.tight_layout()
    return figure


def _draw(axis: Axes, run: Run, shown: list[str]) -> None:
    found = run.once(metrics)
    for method, colour, mark in zip(shown, cycle(COLOURS), cycle("os^dv"), strict=False):
        steps, distances = curve(run, method)
        label = run.label(method).split(", d =")[0]
        axis.plot(steps, distances, mark + "-", color=colour, markersize=4, linewidth=1.2, label=label)
    if shown:
        floor, bias = (value(found[f"{shown[0]}.{part}"]) for part in ("tv_noise", "tv_bias"))
        axis.axhline(floor, color="black", linewidth=0.8, linestyle="--")
        axis.axhline(floor + bias, color="black", linewidth=0.8, linestyle=":")
        axis.legend()
    axis.set(xscale="log", yscale="log", xlabel="iteration", ylim=(None, 1.3))


def robust(run: Run) -> Figure:
    """The same for other c_n and other minibatch sizes.

    Each against the tempered posterior of its own c_n, from one start, which is nearer in standard deviations where
    c_n is small. Dashed: what chance alone gives; dotted: with the bias at c_n = 20 and m = 1000 beside it; grey: what
    chance gives the others, which have fewer chains.
    """
    figure, axis = plt.subplots(figsize=(5.2, 3.4))
    shown = _others(run)
    _draw(axis, run, shown)
    for floor in {value(run.once(metrics)[f"{method}.tv_noise"]) for method in shown[1:]}:
        axis.axhline(floor, color="grey", linewidth=0.8, linestyle="--")
    axis.set_ylabel("total variation distance")
    figure.tight_layout()
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found = run.once(metrics)
    lines = [
        "Start, iterations, bins and step of Figure 2(a) are not printed: here all chains begin 5 tempered standard "
        "deviations off in each coordinate, and all algorithms have one step, with which MHBT accepts about 30 %. "
        "Minibatches are those of Algorithm 1 (stored), independent for each chain.",
        "The chain is exact for a law a little wider than the tempered posterior: minibatches on which a point looks "
        "good are kept. Its variance is larger by the factor 1 / (1 - (c/m) (1 - m/n)), to first order.",
    ]
    lines += [
        f"d = {name[1:]}: MHBT needs {found[f'{name}.slower']:.2f} times the iterations of the full batch to come down "
        f"to {CLOSE:g} above its floor, as minibatch noise in its log-ratio costs acceptances at the same step; it "
        f"reads {run.config['m']:,} of {run.config['data']['n']:,} data in each."
        for name in PAIRS
        if f"{name}.slower" in found
    ]
    lines += [
        f"d = 5, {name} start: {found[f'{name}.slower']:.2f} times the iterations; the curves differ by at most "
        f"{value(found[f'{name}.largest_gap']):.3f}."
        for name in STARTS
        if f"{name}.slower" in found
    ]
    return lines
