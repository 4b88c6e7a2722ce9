"""Figure 1 and section 4 of Zhang et al. (2020): cyclical and decreasing step sizes, and their sums."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import zeta

from mhrun.report.metrics import Metrics
from mhrun.report.plots import finished, legend_right, panels
from mhrun.report.vocabulary import COLOURS, Array, Figure, Run, Style, by_rows
from mhrun.schedules.cosine import Cosine
from mhrun.schedules.polynomial import Polynomial

SEARCHED = 2000  # steps up to which the two diffusion times are compared, one by one
WORDS = {"third": "k^(-1/3)", "half": "k^(-1/2)", "toy": "k^(-0.55)", "one": "1/k"}


def cyclical(first: float, cycles: int, steps: int) -> Array:
    """Return the step sizes of equation 2 (K,)."""
    placed = Cosine(first, cycles, explore=0.0).bind(0, steps)
    sizes: Array = placed.values({}, 1, steps)["step_size"][:, 0].numpy()
    return sizes


def decreasing(first: float, exponent: float, steps: int) -> Array:
    """Return first k^-exponent (K,)."""
    placed = Polynomial(first, None, exponent).bind(0, steps)
    sizes: Array = placed.values({}, 1, steps)["step_size"][:, 0].numpy()
    return sizes


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
    per_epoch, steps = config["steps_per_epoch"], config["steps_per_epoch"] * config["epochs"]
    first, exponent = config["a_0"], config["decay"]
    epochs = np.arange(1, steps + 1) / per_epoch
    falling = decreasing(first * per_epoch**exponent, exponent, steps)
    return epochs, cyclical(first, config["cycles"], steps), falling


def crossings(epochs: Array, one: Array, other: Array) -> list[tuple[float, float]]:
    """Return where `one` falls through `other`: epochs and sizes, between steps by straight lines."""
    gap = one - other
    points = []
    for k in np.flatnonzero((gap[:-1] > 0) & (gap[1:] <= 0)):
        part = gap[k] / (gap[k] - gap[k + 1])
        points.append(tuple(float(v[k] + part * (v[k + 1] - v[k])) for v in (epochs, other)))
    return points  # type: ignore[return-value]


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims."""
    config = run.config
    numbers: Metrics = {}
    epochs, sizes, falling = figure_steps(config)
    cycles = sizes.reshape(config["cycles"], -1)
    numbers |= {
        "cycles.first": float(cycles[:, 0].min()),
        "cycles.last": float(cycles[:, -1].max()),
        "cycles.difference": float(np.ptp(cycles, axis=0).max()),
    }
    for i, (epoch, size) in enumerate(crossings(epochs, sizes, falling), 1):
        numbers |= {f"crossing_{i}.epoch": epoch, f"crossing_{i}.size": size}
    steps, count = config["steps"], config["cycles"]
    unit = cyclical(1.0, count, steps)
    numbers["cyclical.time_error"] = float(unit.sum() / (steps / 2) - 1)
    numbers["cyclical.square_error"] = float(np.square(unit).sum() / (3 * steps / 8) - 1)
    for name, exponent in config["exponents"].items():
        numbers[f"{name}.not_longer"] = not_longer(count, exponent)
        numbers[f"{name}.square_ratio"] = square_ratio(count, exponent, steps)
        of_cycles = bound(cyclical(config["a_0"], count, steps))
        first = {"": config["a_0"], "_raised": matched(config["a_0"], count, exponent, steps)}
        for suffix, size in first.items():
            numbers[f"{name}.bound_ratio{suffix}"] = bound(decreasing(size, exponent, steps)) / of_cycles
    third = decreasing(1.0, 1 / 3, steps).sum()
    numbers["third.time_error"] = float(third / (1.5 * steps ** (2 / 3)) - 1)
    return numbers


def sums(run: Run) -> pd.DataFrame:
    """Sums of step sizes (diffusion time) and of their squares, over a_0 and a_0^2, beside closed forms."""
    steps = run.config["steps"]

    def row(sizes: Array, first: float, second: float) -> dict[str, float]:
        total, squares = float(sizes.sum()), float(np.square(sizes).sum())
        return {"sum": total, "closed form": first, "sum of squares": squares, "closed form ": second}

    rows = {"cyclical": row(cyclical(1.0, run.config["cycles"], steps), steps / 2, 3 * steps / 8)}
    for name, g in run.config["exponents"].items():
        closed = power_sum(g, steps), power_sum(2 * g, steps)
        rows[WORDS.get(name, name)] = row(decreasing(1.0, g, steps), *closed)
    return by_rows(rows)


def power_sum(exponent: float, steps: int) -> float:
    """Return the sum of k^-exponent to leading order: a power, a logarithm, or the whole series less its tail."""
    if exponent == 1:
        return math.log(steps)
    power = steps ** (1 - exponent) / (1 - exponent)
    return float(zeta(exponent)) + power if exponent > 1 else power


def raised(run: Run) -> pd.DataFrame:
    """Case 2 of section 4: the decay is raised until its diffusion time is that of the cycles."""
    config, lengths = run.config, run.config["lengths"]
    rows = {}
    for name, g in config["exponents"].items():
        row = {f"first step, K = {k:,}": matched(1.0, config["cycles"], g, k) for k in lengths}
        row |= {f"squares, K = {k:,}": square_ratio(config["cycles"], g, k) for k in lengths}
        rows[WORDS.get(name, name)] = row
    return by_rows(rows)


def bounds(run: Run) -> pd.DataFrame:
    """The bounds (5) and (6) in the form that is recalled, unverified, with all constants 1 and exact gradients."""
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
    return by_rows(rows)


def step_sizes(run: Run) -> Figure:
    """Step sizes against epochs (Figure 1)."""
    config = run.config
    epochs, sizes, falling = figure_steps(config)
    length = config["epochs"] / config["cycles"]
    limits: Style = {"xlim": (0, config["epochs"]), "ylim": (0, 1.06 * config["a_0"])}
    figure, (axis,) = panels(1, size=(5.8, 3.0), xlabel="epoch", ylabel="step size", **limits)
    stages = ((0.0, config["explore"], "--", "exploring"), (config["explore"], 1.0, "-", "sampling"))
    for i in range(config["cycles"]):
        for low, high, line, name in stages:
            part = (epochs > (i + low) * length) & (epochs <= (i + high) * length)
            style: Style = {
                "color": COLOURS[1],
                "linewidth": 1.6,
                "label": None if i else f"cyclical, {name}",
            }
            axis.plot(epochs[part], sizes[part], line, **style)
    late = epochs >= 1
    axis.plot(epochs[late], falling[late], color=COLOURS[0], linewidth=1.6, label="decreasing")
    axis.plot(*zip(*crossings(epochs, sizes, falling), strict=True), "o", color="black", markersize=3.5)
    legend_right(axis)
    return figure


def growth(run: Run) -> Figure:
    """How sums grow with K: diffusion time, and squares at equal diffusion time (section 4, cases 1 and 2)."""
    config, count = run.config, run.config["cycles"]
    lengths = count * np.unique(np.geomspace(5, max(config["lengths"]) / count, 25).astype(int))
    figure, (left, right) = panels(2, size=(4.0, 3.0), share="", xscale="log", xlabel="steps K")
    left.plot(lengths, [cyclical(1.0, count, k).sum() for k in lengths], color="black", label="cyclical")
    right.plot(lengths, [np.square(cyclical(1.0, count, k)).sum() / k for k in lengths], color="black")
    for (name, exponent), colour in zip(config["exponents"].items(), COLOURS, strict=False):
        times = decreasing(1.0, exponent, int(lengths[-1])).cumsum()[lengths - 1]
        left.plot(lengths, times, color=colour, label=WORDS.get(name, name))
        raised = (matched(1.0, count, exponent, k) * decreasing(1.0, exponent, k) for k in lengths)
        squares = [np.square(sizes).sum() / k for sizes, k in zip(raised, lengths, strict=True)]
        right.plot(lengths, squares, color=colour)
    left.set(yscale="log", ylabel=r"$\sum a_k \,/\, a_0$", title="equal first step")
    right.set(ylim=(0.2, 1.3), ylabel=r"$\sum a_k^2 \,/\, a_0^2 K$", title="equal diffusion time")
    return finished(figure, legend="right")
