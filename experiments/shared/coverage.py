"""Which modes of a mixture draws cover, and how well they fill them (appendix A.1 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from mhrun.report.vocabulary import Array

Counts = npt.NDArray[np.int64]


class Tally(NamedTuple):
    """Counts of the draws of each chain, about the K modes of a mixture."""

    draws: Counts  # (C,)
    within: dict[float, Counts]  # radius -> (C, K), draws nearer to a centre than that
    nearest: Counts  # (C, K), draws that a centre is the nearest to
    squares: Array  # (C,), mean squared distance of a coordinate, of draws within `reach` of a centre

    @property
    def weights(self) -> Array:
        """The share of each mode in the draws of each chain (C, K)."""
        return ratio(self.nearest, self.draws[:, None])

    def share(self, radius: float) -> Array:
        """Return the share of each chain's draws that are near a centre (C,)."""
        return ratio(self.within[radius].sum(axis=1), self.draws)


def ratio(counts: Counts | Array, of: Counts) -> Array:
    """Return shares; NaN of none, as a chain that stopped at once has no draws."""
    none = np.full(counts.shape, np.nan)
    shares: Array = np.divide(counts, of, out=none, where=np.broadcast_to(of != 0, counts.shape))
    return shares


def tally(chains: Sequence[Array], centres: Array, radii: Sequence[float], reach: float) -> Tally:
    """Count draws about centres.

    Args:
        chains: the draws of each chain, (S, D); not all need be as many.
        centres: (K, D).
        radii: see `Tally.within`.
        reach: half of the distance of two centres, beyond which a draw is of no mode.
    """
    count = len(centres)
    within = {radius: np.zeros((len(chains), count), np.int64) for radius in radii}
    nearest = np.zeros((len(chains), count), np.int64)
    squares = np.full(len(chains), np.nan)
    for c, draws in enumerate(chains):
        with np.errstate(over="ignore"):  # a chain that has left the numbers is far from every centre
            gaps = np.stack([np.square(draws - centre).sum(axis=-1) for centre in centres])  # (K, S)
        for radius in radii:
            within[radius][c] = np.count_nonzero(gaps < radius**2, axis=1)
        nearest[c] = np.bincount(gaps.argmin(axis=0), minlength=count)
        least = gaps.min(axis=0)
        if (least < reach**2).any():
            squares[c] = least[least < reach**2].mean() / draws.shape[1]
    return Tally(np.array([len(draws) for draws in chains]), within, nearest, squares)


def covered(counts: Counts, threshold: int) -> Array:
    """Return how many modes have more than `threshold` of the draws (..., K): (...)."""
    modes: Array = (counts > threshold).sum(axis=-1).astype(float)
    return modes


def pooled(values: Counts, together: int) -> Counts:
    """Return the sums of (C, K) over each `together` chains, (C // together, K); what is left over is left out."""
    runs = len(values) // together
    sums: Counts = values[: runs * together].reshape(runs, together, -1).sum(axis=1)
    return sums


def visited(modes: int, visits: int) -> float:
    """Return how many of `modes` are visited on average, if each of `visits` is to any of them alike."""
    return modes * (1 - (1 - 1 / modes) ** visits)


def union(modes: int, each: float, sets: int) -> float:
    """Return how many of `modes` are in the union of `sets` random sets of `each`, on average."""
    return modes * (1 - (1 - each / modes) ** sets)


def distance_by_chance(modes: int, visits: int) -> float:
    """Return the mean total variation distance from equal weights of the shares of `visits` random visits."""
    k = np.arange(visits + 1)
    gaps = np.abs(k / visits - 1 / modes)
    return float(0.5 * modes * (stats.binom.pmf(k, visits, 1 / modes) @ gaps))
