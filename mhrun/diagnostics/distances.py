"""Distances between two sets of chains, with errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from mhrun.array_types import FloatArray
from mhrun.diagnostics.chains import ess
from mhrun.diagnostics.grid import Estimate
from mhrun.diagnostics.tails import HEAVY, tail_indices

_POINTS = 4096  # points of each set from which the energy distance is computed


class Shifts(NamedTuple):
    """Means and spreads of draws relative to those of a reference, (D,) each."""

    mean: FloatArray  # difference of the means, in standard deviations of the reference
    mean_se: FloatArray
    spread: FloatArray  # standard deviation over that of the reference
    spread_se: FloatArray
    tail: FloatArray | None = None  # the lesser tail index of the two; above `HEAVY` these errors are invalid

    @property
    def heavy(self) -> npt.NDArray[np.bool_]:
        """Whether the tails of a coordinate are so heavy that its mean and its spread have no Monte Carlo errors."""
        if self.tail is None:
            return np.zeros(len(self.mean), bool)
        heavy: npt.NDArray[np.bool_] = self.tail > HEAVY
        return heavy

    def worst(self) -> tuple[Estimate, Estimate]:
        """Return the largest shift of a mean and the ratio of spreads that is furthest from 1, over the coordinates."""
        if not np.isfinite(self.mean).any() or not np.isfinite(self.spread).any():
            return Estimate(np.nan, np.nan), Estimate(np.nan, np.nan)
        i = int(np.nanargmax(np.abs(self.mean)))
        with np.errstate(divide="ignore"):
            j = int(np.nanargmax(np.abs(np.log(self.spread))))
        return (
            Estimate(float(self.mean[i]), float(self.mean_se[i])),
            Estimate(float(self.spread[j]), float(self.spread_se[j])),
        )


def shifts(draws: FloatArray, reference: FloatArray) -> Shifts:
    """Return means and standard deviations of draws (C, S, D) relative to those of a reference (C', S', D).

    Standard errors use the effective sample sizes of both sets: that of the draws for the mean, and that of their
    squared deviations for the spread. The error of a coordinate that never moves is NaN, and all is NaN in a coordinate
    in which the reference never moves.
    """
    moments, reference_moments = _moments(draws), _moments(reference)
    reference_moments.sd[reference_moments.sd == 0] = np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = moments.sd / reference_moments.sd
        return Shifts(
            (moments.mean - reference_moments.mean) / reference_moments.sd,
            np.sqrt(moments.mean_se**2 + reference_moments.mean_se**2) / reference_moments.sd,
            ratio,
            ratio
            * np.sqrt(
                (moments.sd_se / moments.sd) ** 2 + (reference_moments.sd_se / reference_moments.sd) ** 2
            ),
            np.fmin(tail_indices(draws), tail_indices(reference)),
        )


def own_error(reference: FloatArray) -> tuple[float, float]:
    """Return the errors of a reference's own means and standard deviations, in its standard deviations.

    Root mean squares over the coordinates that move of the Monte Carlo standard errors, draws (C, S, D).
    """
    moments = _moments(reference)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = (moments.mean_se / moments.sd, moments.sd_se / moments.sd)
    mean, spread = (float(np.sqrt(np.nanmean(np.square(error)))) for error in errors)
    return mean, spread


class _Moments(NamedTuple):
    mean: FloatArray
    mean_se: FloatArray
    sd: FloatArray
    sd_se: FloatArray


def _moments(draws: FloatArray) -> _Moments:
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1), ddof=1)
    columns = [draws[..., d] for d in range(draws.shape[-1])]
    size = np.array([ess(column, "mean") for column in columns])
    squares = [np.square(column - centre) for column, centre in zip(columns, mean, strict=True)]
    # The variance is a mean of squares, so its error is the error of that mean; sd = sqrt(variance).
    of_squares = np.array([ess(square, "mean") for square in squares])
    variance_se = np.array([square.std(ddof=1) for square in squares]) / np.sqrt(of_squares)
    with np.errstate(invalid="ignore", divide="ignore"):
        return _Moments(mean, sd / np.sqrt(size), sd, variance_se / (2 * sd))


def energy_distance(draws: FloatArray, reference: FloatArray) -> Estimate:
    """Estimate 2 E|X - Y| - E|X - X'| - E|Y - Y'| between the distributions of two sets of chains, without bias.

    Szekely & Rizzo 2013. Coordinates are in standard deviations of the reference, |.| is the Euclidean norm. The
    distance is zero if and only if the distributions agree. X and X' come from different chains, which are independent,
    so the estimate is unbiased and can be negative. The standard error is a jackknife over the chains of both sets: on
    average up to 1.5 times too large where the distributions agree, as it counts interactions of pairs of chains twice
    (Efron & Stein 1981), and right where they differ clearly. At most 4096 points of each set are used, evenly spread
    over its chains.

    Args:
        draws: (C, S, D).
        reference: (C', S', D).

    Returns:
        The estimate; NaN if either set has one chain, or a coordinate of the reference never moves.
    """
    sizes = len(draws), len(reference)
    if min(sizes) < 2:
        return Estimate(float("nan"), float("nan"))
    sd = reference.std(axis=(0, 1), ddof=1)
    if not (sd > 0).all() or not np.isfinite(draws).all() or not np.isfinite(reference).all():
        return Estimate(float("nan"), float("nan"))
    points = [
        *(evenly_spaced(chain, sizes[0]) / sd for chain in draws),
        *(evenly_spaced(c, sizes[1]) / sd for c in reference),
    ]
    chains = len(points)
    between = np.zeros((chains, chains))  # mean distances between the points of two chains
    for a in range(chains):
        for b in range(a + 1, chains):
            between[a, b] = between[b, a] = cdist(points[a], points[b]).mean()
    first = np.arange(chains) < sizes[0]

    def estimate(kept: npt.NDArray[np.bool_]) -> float:
        x, y = kept & first, kept & ~first
        within = [_off_diagonal(between[np.ix_(part, part)]) for part in (x, y)]
        return float(2 * between[np.ix_(x, y)].mean() - sum(within))

    value, variance = estimate(np.ones(chains, bool)), 0.0
    for part in (first, ~first):
        count = int(part.sum())
        if count < 3:  # with two chains, leaving one out leaves no pair
            return Estimate(value, float("nan"))
        left_out = np.array([estimate(np.arange(chains) != i) for i in np.flatnonzero(part)])
        variance += (count - 1) / count * np.square(left_out - left_out.mean()).sum()
    return Estimate(value, float(np.sqrt(variance)))


def evenly_spaced(chain: FloatArray, chains: int) -> FloatArray:
    """Return evenly spaced draws of one of several chains; of all chains about `_POINTS`, at most."""
    limit = max(1, _POINTS // chains)
    return chain[:: -(-len(chain) // limit)]


def _off_diagonal(block: FloatArray) -> float:
    count = len(block)
    return float((block.sum() - np.trace(block)) / (count * (count - 1)))
