"""Smoothed densities of draws, and axis limits that fit those of most methods."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from mhrun.array_types import Float64Array

_MAX_MEDIANS = 6  # times the median width or height of densities, beyond which an axis has no room for one
_SMOOTHED = 1 << 20  # draws of a smoothed density, at most
_MIN_DRAWS = 100  # draws that its width is found from, where they are worth fewer
_BINS = 512

Curve = tuple[Float64Array, Float64Array]  # x and y


def axis_ends(x: Sequence[Float64Array]) -> tuple[float, float]:
    """Return the ends of an axis for values of several methods, without those far wider than most, or far away."""
    ends = np.array([(values.min(), values.max()) for values in x])
    widths, middles = ends[:, 1] - ends[:, 0], ends.mean(axis=1)
    width, middle = np.quantile([widths, middles], 0.5, axis=1, method="lower")
    near = (widths <= _MAX_MEDIANS * width) & (np.abs(middles - middle) <= _MAX_MEDIANS * width)
    if not near.any():  # no two methods agree on where the draws are
        near[:] = True
    low, high = ends[near, 0].min(), ends[near, 1].max()
    margin = 0.05 * ((high - low) or max(1.0, abs(low)))  # chains that never move have no width
    return float(low - margin), float(high + margin)


def axis_height(curves: Sequence[Curve]) -> float:
    """Return the top of an axis for densities, which the spike of a chain that does not move leaves."""
    tops = np.array([y.max() for _, y in curves])
    return 1.05 * float(min(tops.max(), _MAX_MEDIANS * np.quantile(tops, 0.5, method="higher")))


def smoothed_density(values: Float64Array, ess: float = np.nan) -> Curve:
    """Return a smoothed density: a histogram of 512 bins convolved with a normal kernel.

    Its width is that of the improved Sheather-Jones method (Botev, Grotowski & Kroese 2010), which sees that the modes
    of a density are narrower than all of it; at most Silverman's. The method is for independent draws, and has as many
    as the effective sample size, without repetitions: of repeated draws each would get a peak.

    Args:
        values: draws of all chains, chain after chain (S,).
        ess: their effective sample size; NaN: S.
    """
    values = values[:: -(-len(values) // _SMOOTHED)]
    low, high = np.quantile(values, [0.001, 0.999])
    sd = min(values.std(), (np.subtract(*np.quantile(values, [0.75, 0.25])) or np.inf) / 1.34)
    sd = sd or max(1e-12, 1e-9 * abs(low))  # chains that never move have no width
    width = 0.9 * sd * len(values) ** -0.2
    independent = values[:: max(1, int(len(values) / max(ess, _MIN_DRAWS)))] if ess > 0 else values
    independent = np.unique(independent)  # not what chains repeat where candidates are rejected
    if len(independent) > 1:
        from arviz_stats.base import array_stats  # slow to import

        with np.errstate(all="ignore"), suppress(ValueError):  # values whose squares overflow
            found = float(array_stats.get_bw((independent - low) / sd, "isj")) * sd
            width = min(width, found) if found > 0 else width
    width = max(width, (high - low) / _BINS)
    edges = np.linspace(low - 4 * width, high + 4 * width, _BINS + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    counts = np.histogram(values, edges)[0] / len(values)
    kernel = np.exp(-0.5 * ((middle[:, None] - middle) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    return middle, kernel @ counts
