"""Counting visits to modes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mhrun.array_types import FloatArray
from mhrun.diagnostics.grid import Estimate, jackknife


def nearest(draws: FloatArray, modes: FloatArray) -> npt.NDArray[np.intp]:
    """Return the index (C, S) of the mode (M, D) that each draw (C, S, D) is nearest to."""
    return np.stack([_squared_distances(draws, mode) for mode in modes]).argmin(axis=0)


def hits(draws: FloatArray, mode: FloatArray, radius: float) -> npt.NDArray[np.bool_]:
    """Return which draws (C, S, D) are within `radius` of a mode (D,): (C, S)."""
    return _squared_distances(draws, mode) < radius**2


def _squared_distances(draws: FloatArray, mode: FloatArray) -> FloatArray:
    """Return the squared distances (C, S) of draws (C, S, D) from a point (D,), coordinate by coordinate."""
    distances = np.zeros(draws.shape[:-1])
    for d, at in enumerate(mode):
        distances += (draws[..., d] - at) ** 2
    return distances


def ratio(first: FloatArray, second: FloatArray) -> Estimate:
    """Return the ratio of two counts per chain, (C,) each, as the ratio of their sums, with a jackknife error.

    The mean of the ratios of single chains would be biased upwards, and infinite if any count is zero. If the second
    count is zero in all chains, the ratio is NaN.
    """
    rows = np.stack([first, second], axis=1).astype(float)

    def estimate(pairs: FloatArray) -> float:
        numerator, denominator = pairs.sum(axis=0)
        return float(numerator / denominator) if denominator > 0 else float("nan")

    return jackknife(estimate, rows)
