"""Figure 1 and section 4 of Zhang et al. (2020): cyclical and decreasing step sizes, and their sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import zeta

from mhrun.report.run import Run
from mhrun.report.style import COLOURS
from mhrun.schedules.cosine import Cosine
from mhrun.schedules.polynomial import Polynomial

from ..shared.measures import Metrics, value

Array = npt.NDArray[np.floating]

SEARCHED = 2000  # steps up to which the two diffusion times are compared, one by one
WORDS = {"third": "k^(-1/3)", "half": "k^(-1/2)", "toy": "k^(-0.55)", "one": "1/k"}


def cyclical(first: float, cycles: int, steps: int) -> Array:
    """Return the step sizes of equation 2 (K,)."""
    placed = Cosine(first, cycles, explore=0.0).over(0, steps)
    found: Array = placed.values({}, 1, steps)["step_size"][:, 0].numpy()
    return found


def decreasing(first: float, exponent: float, steps: int) -> Array:
    """Return first k^-exponent (K,)."""
    placed = Polynomial(first, None, exponent).over(0, steps)
    found: Array = placed.values({}, 1, steps)["step_size"][:, 0].numpy()
    return found


def matched(first: float, cycles: int, exponent: float, steps: int) -> float:
    """Return the first step of a decay whose steps have the sum of the cyclical ones (section 4, case 2)."""
    return float(cyclical(first, cycles, steps).sum() / decreasing(1.0, exponent, steps).sum())


def square_ratio(cycles: int, exponent: float, steps: int) -> float:
    """Return the sum of squares of the decay that has the cycles' diffusion time, over that of the cycles."""
    sizes = matched(1.0, cycles, exponent, steps) * decreasing(1.0, exponent, steps)
    return float(np.square(sizes).sum() / np.square(cyclical(1.0, cycles, steps)).sum())


def bound(sizes: Array) -> float:
    """Return the right-hand side of (5) or (6) in the form that is recalled, with constants of 1 and exact gradients.

    exp(-S/2) + (6 + S)^(1/2) (Q^(1/2) + (Q/2)^(1/4)), S the sum of the step sizes and Q that of their squares.
    """
    time, squares = float(sizes.sum()), float(np.square(sizes).sum())
    return math.exp(-time) + math.sqrt(6 + time) * (math.sqrt(squares) + (squares / 2) ** 0.25)


def not_longer(cycles: int, exponent: float) -> float:
    """Return the largest K, a multiple of the cycles, at which they have not the longer diffusion time; 0: none."""
    decay = decreasing(1.0, exponent, SEARCHED).cumsum()
    lengths = range(cycles, SEARCHED + 1, cycles)
    return float(max((k for k in lengths if cyclical(1.0, cycles, k).sum() <= decay[k - 1]), default=0))


def squares_from(cycles: int, exponent: float) -> int:
    """Return the K, a multiple of the cycles, from which the raised decay has the larger sum of squares."""
    lengths = range(cycles, SEARCHED + 1, cycles)
    return max((k for k in lengths if square_ratio(cycles, exponent, k) <= 1), default=0) + cycles


def figure_steps(config: Mapping[str, Any]) -> tuple[Array, Array, Array]:
    """Return epochs, cyclical steps and decreasing steps of Figure 1, (K,) each; the decay is a_0 k^-0.55 in epochs."""
    each, steps = config["steps_per_epoch"], config["steps_per_epoch"] * config["epochs"]
    first, exponent = config["a_0"], config["decay"]
    epochs = np.arange(1, steps + 1) / each
    falling = decreasing(first * each**exponent, exponent, steps)
    return epochs, cyclical(first, config["cycles"], steps), falling


def crossings(epochs: Array, one: Array, other: Array) -> list[tuple[float, float]]:
    """Return where `one` falls through `other`: epochs and sizes, between steps by straight lines."""
    gap = one - other
    found = []
    for k in np.flatnonzero((gap[:-1] > 0) & (gap[1:] <= 0)):
        part = gap[k] / (gap[k] - gap[k + 1])
        found.append(tuple(float(v[k] + part * (v[k + 1] - v[k])) for v in (epochs, other)))
    return found  # type: ignore[return-value]


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim speaks of."""
    config = run.config
    found: Metrics = {}
    epochs, sizes, falling = figure_steps(config)
    cycles = sizes.reshape(config["cycles"], -1)
    found |= {
        "cycles.first": float(cycles[:, 0].min()),
        "cycles.last": float(cycles[:, -1].max()),
        "cycles.difference": float(np.ptp(cycles, axis=0).max()),
    }
    for i, (epoch, size) in enumerate(crossings(epochs, sizes, falling), 1):
        found |= {f"crossing_{i}.epoch": epoch, f"crossing_{i}.size": size}
    steps, count = config["steps"], config["cycles"]
    whole = cyclical(1.0, count, steps)
    found["cyclical.time_error"] = float(whole.sum() / (steps / 2) - 1)
    found["cyclical.square_error"] = float(np.square(whole).sum() / (3 * steps / 8) - 1)
    for name, exponent in config["exponents"].items():
        found[f"{name}.not_longer"] = not_longer(count, exponent)
        found[f"{name}.square_ratio"] = square_ratio(count, exponent, steps)
        of_cycles = bound(cyclical(config["a_0"], count, steps))
        first = {"": config["a_0"], "_raised": matched(config["a_0"], count, exponent, steps)}
        for which, size in first.items():
            found[f"{name}.bound_ratio{which}"] = bound(decreasing(size, exponent, steps)) / of_cycles
    third = decreasing(1.0, 1 / 3, steps).sum()
    found["third.time_error"] = float(third / (1.5 * steps ** (2 / 3)) - 1)
    return found


def sums(run: Run) -> pd.DataFrame:
    """Sums of step sizes (diffusion time) and of their squares, over a_0 and a_0^2, beside closed forms.

    K = 10,000 steps in 4 cycles. Cyclical: K/2 and 3K/8; both sums are M/2 above it. Decreasing by k^-g:
    K^(1 - g)/(1 - g), log K at g = 1, and with zeta(g) added for g > 1.
    """
    config = run.config
    steps, rows = config["steps"], {}
    whole = cyclical(1.0, config["cycles"], steps)
    rows["cyclical"] = {
        "sum": float(whole.sum()),
        "closed form": steps / 2,
        "sum of squares": float(np.square(whole).sum()),
        "closed form ": 3 * steps / 8,
    }
    for name, exponent in config["exponents"].items():
        sizes = decreasing(1.0, exponent, steps)
        rows[WORDS.get(name, name)] = {
            "sum": float(sizes.sum()),
            "closed form": power_sum(exponent, steps),
            "sum of squares": float(np.square(sizes).sum()),
            "closed form ": power_sum(2 * exponent, steps),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def power_sum(exponent: float, steps: int) -> float:
    """Return the sum of k^-exponent to leading order: a power, a logarithm, or the whole series less its tail."""
    if exponent == 1:
        return math.log(steps)
    power = steps ** (1 - exponent) / (1 - exponent)
    return float(zeta(exponent)) + power if exponent > 1 else power


def raised(run: Run) -> pd.DataFrame:
    """Case 2 of section 4: the decay is raised until its diffusion time is that of the cycles.

    Its first step over a_0, and its sum of squares over that of the cycles, for several K. The text says that the
    second becomes much larger; by its exponent, it need not.
    """
    config, rows = run.config, {}
    for name, exponent in config["exponents"].items():
        row: dict[str, float] = {}
        for steps in config["lengths"]:
            row[f"first step, K = {steps:,}"] = matched(1.0, config["cycles"], exponent, steps)
        for steps in config["lengths"]:
            row[f"squares, K = {steps:,}"] = square_ratio(config["cycles"], exponent, steps)
        rows[WORDS.get(name, name)] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def bounds(run: Run) -> pd.DataFrame:
    """The bounds (5) and (6) in the form that is recalled, unverified, with all constants 1 and exact gradients.

    At a_0 = 0.1: of the cycles, of decays with that first step, and of decays raised as in case 2.
    """
    config, rows = run.config, {}
    first, count = config["a_0"], config["cycles"]

    def row(sizes_of: Any) -> dict[str, float]:
        return {f"K = {steps:,}": bound(sizes_of(steps)) for steps in config["lengths"]}

    rows["cyclical"] = row(lambda steps: cyclical(first, count, steps))
    for name, exponent in config["exponents"].items():
        words = WORDS.get(name, name)
        rows[words] = row(lambda steps, g=exponent: decreasing(first, g, steps))
        rows[f"{words}, raised"] = row(
            lambda steps, g=exponent: decreasing(matched(first, count, g, steps), g, steps)
        )
    return pd.DataFrame.from_dict(rows, orient="index")


def step_sizes(run: Run) -> Figure:
    """Step sizes against epochs (Figure 1).

    Orange: cycles, dashed while they explore, solid while they sample. Blue: the decay 0.1 k^-0.55. Dots: where a
    falling cycle crosses it.
    """
    config = run.config
    epochs, sizes, falling = figure_steps(config)
    length = config["epochs"] / config["cycles"]
    figure, axis = plt.subplots(figsize=(5.8, 3.0))
    for i in range(config["cycles"]):
        for low, high, line in ((0.0, config["explore"], "--"), (config["explore"], 1.0, "-")):
            part = (epochs > (i + low) * length) & (epochs <= (i + high) * length)
            label = ("cyclical, exploring" if line == "--" else "cyclical, sampling") if i == 0 else None
            axis.plot(epochs[part], sizes[part], line, color=COLOURS[1], linewidth=1.6, label=label)
    late = epochs >= 1
    axis.plot(epochs[late], falling[late], color=COLOURS[0], linewidth=1.6, label="decreasing")
    for epoch, size in crossings(epochs, sizes, falling):
        axis.plot(epoch, size, "o", color="black", markersize=3.5)
    axis.set(xlabel="epoch", ylabel="step size", xlim=(0, config["epochs"]), ylim=(0, 1.06 * config["a_0"]))
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def growth(run: Run) -> Figure:
    """How sums grow with K: diffusion time, and squares at equal diffusion time (section 4, cases 1 and 2).

    Left: the sum of step sizes over a_0. Right: the sum of squares of decays that are raised to the diffusion time of
    the cycles, over a_0^2 K; black: the cycles, 3/8 in the limit. A decay has the larger sum where it is above black;
    1/k leaves the panel.
    """
    config = run.config
    count = config["cycles"]
    lengths = count * np.unique(np.geomspace(5, max(config["lengths"]) / count, 25).astype(int))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 3.0))
    left.plot(lengths, [cyclical(1.0, count, k).sum() for k in lengths], color="black", label="cyclical")
    right.plot(lengths, [np.square(cyclical(1.0, count, k)).sum() / k for k in lengths], color="black")
    for (name, exponent), colour in zip(config["exponents"].items(), COLOURS, strict=False):
        left.plot(
            lengths,
            decreasing(1.0, exponent, int(lengths[-1])).cumsum()[lengths - 1],
            color=colour,
            label=WORDS.get(name, name),
        )
        squares = [
            np.square(matched(1.0, count, exponent, k) * decreasing(1.0, exponent, k)).sum() / k
            for k in lengths
        ]
        right.plot(lengths, squares, color=colour)
    left.set(
        xscale="log", yscale="log", xlabel="steps K", ylabel=r"$\sum a_k \,/\, a_0$", title="equal first step"
    )
    right.set(xscale="log", ylim=(0.2, 1.3), xlabel="steps K", title="equal diffusion time")
    right.set_ylabel(r"$\sum a_k^2 \,/\, a_0^2 K$")
    _legend(figure, left)
    return figure


def _legend(figure: Figure, axis: Axes) -> None:
    figure.tight_layout()
    figure.legend(*axis.get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1, 0.5))


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    config, found = run.config, run.once(metrics)
    steps, count = config["steps"], config["cycles"]
    ratios = ", ".join(
        f"{value(found[f'{name}.square_ratio']):.3g} for {WORDS.get(name, name)}"
        for name in config["exponents"]
    )
    firsts = ", ".join(f"{matched(1.0, count, g, steps):,.3g}" for g in config["exponents"].values())
    return [
        "Figure 1: read off the authors' picture, with r the completed share of a cycle at every step. With k in whole "
        "epochs in equation 2, where r = mod(k - 1, L)/L, cycles lag one epoch behind.",
        "The exponent of the decreasing steps in Theorem 1 is lost in the stored text; 1/3 is recalled, and the "
        "footnote says that other exponents behave alike. In case 1 they do: diffusion time grows as K in cycles "
        "and as K^(2/3) or less without. The formulas of the two sums cross at K = 27; the sums themselves do not, "
        "since cycles have a_0 M/2 more than theirs.",
        f"In case 2 they do not. At K = {steps:,} the sum of squares at equal diffusion time is, over that of the "
        f"cycles, {ratios}. With k^(-1/3) it tends to (1/3)/(3/8) = 0.89: smaller, so that the text's conclusion "
        f"does not follow. With exponents from 1/2 on it does, from some K on ({squares_from(count, 0.5):,} with "
        "k^(-1/2)).",
        f"What speaks against raising the decay is its first step instead: {firsts} times a_0 at that K.",
        "The bounds are in a form that is recalled from a later version, and unverified. In it the diffusion time "
        "helps in the first term alone and harms in the second, as the squares do: with constants of 1 the cycles "
        "have the larger bound at an equal first step, and at equal diffusion time it is the squares that decide. "
        "At a fixed a_0 the bound of the cycles grows with K. So it compares schedules, and shows no convergence.",
    ]
