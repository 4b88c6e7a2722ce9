"""Heavy tails of draws, whose moments are unreliable or do not exist."""

from __future__ import annotations

import numpy as np

from mhrun.array_types import FloatArray

HEAVY = 0.4
"""Tail index above which means and standard deviations are not compared: that of Student's t with 2 degrees of freedom
is 0.5, and is found to be 0.44 to 0.64 from 8,000 draws; with 3 it is 0.33, and 0.24 to 0.46."""
_TAILED = 100  # draws of which a tail index is estimated
# Interquartile ranges from the median from which a tail is fitted, and the tail index above which there is a warning.
# That of draws of Student's t with 2 degrees of freedom, whose variance is infinite, is found to be 0.44 to 0.64.
_FAR_OUT, _HEAVIEST = 50.0, 0.7


def tail_index(draws: FloatArray) -> float:
    """Return the larger tail index of draws (C, S) of one quantity; NaN where it is undefined.

    It is that of a generalised Pareto distribution, fitted to the largest and to the smallest draws (Vehtari et al.
    2024, section 3): the variance is infinite from 1/2 on.
    """
    from arviz_stats.base import array_stats

    if draws.size < _TAILED or not np.isfinite(draws).all() or np.ptp(draws) == 0:
        return np.nan
    try:
        return float(array_stats.pareto_khat(draws, chain_axis=0, draw_axis=1))
    except ValueError:  # all draws of a tail are equal, as of a chain that does not move from an extreme
        return np.nan


def tail_indices(draws: FloatArray) -> FloatArray:
    """Return the `tail_index` of each coordinate of draws (C, S, D), (D,)."""
    return np.array([tail_index(draws[..., d]) for d in range(draws.shape[-1])])


def heaviest(draws: FloatArray) -> tuple[int, float] | None:
    """Return the coordinate of draws (C, S, D) that is furthest out and its tail index; None if it has a variance."""
    middle, low, high = np.quantile(draws, (0.5, 0.25, 0.75), axis=(0, 1))
    width = np.where(high > low, high - low, np.inf)
    out = np.abs(draws - middle).max((0, 1)) / width
    worst = int(out.argmax())
    if not out[worst] > _FAR_OUT:
        return None
    index = tail_index(draws[..., worst])
    return (worst, index) if index > _HEAVIEST else None
