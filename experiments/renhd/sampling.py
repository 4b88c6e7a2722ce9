"""Section 3 of Luo et al. (2020): is the analytic density faster to sample than a table?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mhrun.report.vocabulary import Array, Run
from mhrun.rules.correction import Correction, nonnegative, quantiles, ridge
from mhrun.rules.series import Series, series

Cells = npt.NDArray[np.int64]

TRIES = 5  # the fastest counts


def timed(work: Callable[[], object], tries: int = TRIES) -> float:
    """Return the seconds of the fastest try."""
    durations = []
    for _ in range(tries):
        begin = time.perf_counter()
        work()
        durations.append(time.perf_counter() - begin)
    return min(durations)


def searched(rng: np.random.Generator, size: int, table: tuple[Array, Array]) -> Array:
    """Return draws (size,) by binary search in a table of cdf and points, linear between."""
    return np.interp(rng.random(size), *table)


def tabulated(rng: np.random.Generator, size: int, points: Array, keep: Array, other: Cells) -> Array:
    """Return draws (size,) of masses by Walker's alias table: no search."""
    u = rng.random(size) * len(points)
    cell = u.astype(np.int64)
    drawn: Array = points[np.where(u - cell < keep[cell], cell, other[cell])]
    return drawn


def aliased(masses: Array) -> tuple[Array, Cells]:
    """Return the shares (P,) that stay and where the others go (P,), of masses (P,) (Walker 1977)."""
    share = masses / masses.sum() * len(masses)
    alias = np.arange(len(masses))
    low, high = (list(np.flatnonzero(which)) for which in (share < 1, share >= 1))
    while low and high:
        small, large = low.pop(), high[-1]
        alias[small] = large
        share[large] -= 1 - share[small]
        if share[large] < 1:
            low.append(high.pop())
    return share, alias


def rejected(rng: np.random.Generator, size: int, found: Series) -> Array:
    """Return draws (size,) by rejection from the logistic density; in g, so that the logarithm comes last."""
    ratio, bound = [float(c) for c in found.ratio], found.range()[1]
    parts: list[npt.NDArray[np.float64]] = []
    missing = size
    while missing > 0:
        g = rng.random(math.ceil(1.01 * bound * missing) + 10)
        parts.append(g[rng.random(len(g)) * bound < np.polynomial.polynomial.polyval(g * (1 - g), ratio)])
        missing -= len(parts[-1])
    g = np.concatenate(parts)[:size]
    drawn: Array = np.log(g / (1 - g))
    return drawn


def chained(rng: np.random.Generator, size: int, found: Series) -> Array:
    """Return draws (size,), one after the other, of Gibbs sampling on the area under the density (a slice sampler).

    In g, where the density is `ratio` on (0, 1): a height under it, then a point of the slice, by trial.
    """
    ratio = [float(c) for c in found.ratio]

    def height(g: float) -> float:
        s, total = g * (1 - g), 0.0
        for c in reversed(ratio):
            total = total * s + c
        return total

    u = iter(rng.random(3 * size + 100).tolist())
    g, drawn = 0.5, []
    for _ in range(size):
        level = next(u) * height(g)
        while height(g := next(u)) < level:
            pass
        drawn.append(math.log(g / (1 - g)))
    return np.array(drawn)


class Time(NamedTuple):
    """What one way to sample takes, in seconds."""

    before: float  # to prepare it
    each: float  # per draw
    faster: float  # a binary search in the cells over this

    @property
    def before_ms(self) -> float:
        """To prepare it, in milliseconds."""
        return 1e3 * self.before

    @property
    def each_ns(self) -> float:
        """Per draw, in nanoseconds."""
        return 1e9 * self.each


def times(run: Run) -> dict[str, Time]:
    """Return for each way to sample the seconds to prepare it and those per draw."""
    config = run.config
    size, variance = int(config["timed"]), config["variance"]
    rng, sd = np.random.default_rng(0), math.sqrt(variance)

    def printed() -> Series:
        return series(variance, config["lam"], config["terms"])

    def cells() -> Correction:
        return ridge(sd, 10.0, config["half_width"])

    printed_series, solved = printed(), cells()
    cells_table, nonnegative_table = (
        (quantile_table.probabilities.numpy(), quantile_table.points.numpy())
        for quantile_table in (quantiles(solved), quantiles(nonnegative(sd)))
    )
    corners, (keep, alias) = printed_series.corners(), aliased(solved.masses)
    single = min(size, 20_000)
    ways: dict[str, tuple[Callable[[], object], int, Callable[[], object], int]] = {
        "series: table of its cdf": (
            lambda: printed().corners(),
            3,
            lambda: searched(rng, size, corners),
            size,
        ),
        "series: rejection": (printed, 3, lambda: rejected(rng, size, printed_series), size),
        "series: Gibbs": (printed, 3, lambda: chained(rng, single, printed_series), single),
        "cells: binary search": (cells, 1, lambda: searched(rng, size, cells_table), size),
        "cells: alias table": (
            lambda: aliased(cells().masses),
            1,
            lambda: tabulated(rng, size, solved.points, keep, alias),
            size,
        ),
        "not negative: binary search": (
            lambda: nonnegative(sd),
            1,
            lambda: searched(rng, size, nonnegative_table),
            size,
        ),
    }
    seconds = {
        name: (timed(prepare, tries), timed(draw) / drawn)
        for name, (prepare, tries, draw, drawn) in ways.items()
    }
    search = seconds["cells: binary search"][1]
    return {name: Time(before, per_draw, search / per_draw) for name, (before, per_draw) in seconds.items()}
