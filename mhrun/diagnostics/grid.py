"""Distances between draws and a density, on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from mhrun.array_types import FloatArray
from mhrun.numbers import is_number

FAR = 7.0  # standard deviations beyond which a density counts as 0: e^-24.5


class Grid(NamedTuple):
    """A rectangle divided into cells, in two dimensions."""

    x: FloatArray  # edges
    y: FloatArray

    @classmethod
    def of(cls, low: tuple[float, float], high: tuple[float, float], cells: int) -> Grid:
        """Return a grid of `cells` x `cells` equal cells."""
        return cls(np.linspace(low[0], high[0], cells + 1), np.linspace(low[1], high[1], cells + 1))

    def shares(self, draws: FloatArray) -> FloatArray:
        """Return the share of each chain's draws (C, S, 2) in each cell and, last, outside the grid: (C, cells + 1)."""
        columns, rows = len(self.x) - 1, len(self.y) - 1
        shares = np.empty((len(draws), columns * rows + 1))
        for c, chain in enumerate(draws):
            # The cells are equal, so arithmetic finds the cell of a draw, ten times faster than a search.
            i = np.floor((chain[:, 0] - self.x[0]) * (columns / (self.x[-1] - self.x[0])))
            j = np.floor((chain[:, 1] - self.y[0]) * (rows / (self.y[-1] - self.y[0])))
            inside = (i >= 0) & (i < columns) & (j >= 0) & (j < rows)
            cell = np.where(inside, i * rows + j, columns * rows).astype(np.int64)
            shares[c] = np.bincount(cell, minlength=columns * rows + 1) / (len(chain) or np.nan)
        return shares


def log_masses(
    log_density: Callable[[FloatArray], FloatArray],
    grid: Grid,
    points: int = 2,
    scale: tuple[float, float] | None = None,
) -> FloatArray:
    """Return the log of the integral of exp(log_density) over each cell (cells,).

    Gauss-Legendre quadrature with `points` nodes a side in each cell. `scale` gives the distances in x and in y over
    which the density changes (a standard deviation along each axis). Cells are then halved until none is wider than
    that; pieces narrower than `scale` get fewer nodes. Pieces where the density is negligible are left out; a cell of
    such pieces is -inf.

    Args:
        log_density: (P, 2) -> (P,).
        grid: the cells.
        points: nodes a side, in each cell or piece.
        scale: of the density; None leaves all cells whole.
    """
    pieces, sides = _pieces(grid), (points, points)
    if scale is not None:
        pieces = _cut(pieces, log_density, np.asarray(scale))
        widest = 2 * pieces.half.max(axis=0) / scale
        sides = (round(2 + (points - 2) * widest[0]), round(2 + (points - 2) * widest[1]))
    (x, wx), (y, wy) = (np.polynomial.legendre.leggauss(side) for side in sides)
    offsets = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    theta = pieces.centre[:, None] + pieces.half[:, None] * offsets
    values = log_density(theta.reshape(-1, 2)).reshape(len(theta), -1)
    top = values.max()
    mass = np.exp(values - top) @ np.outer(wx, wy).ravel() * pieces.half.prod(axis=1)
    with np.errstate(divide="ignore"):
        return np.log(np.bincount(pieces.cell, mass, (len(grid.x) - 1) * (len(grid.y) - 1))) + top


class _Pieces(NamedTuple):
    """Rectangles into which cells are divided."""

    centre: FloatArray  # (P, 2)
    half: FloatArray  # (P, 2) half side lengths
    cell: npt.NDArray[np.intp]  # (P,) the cell of each


def _pieces(grid: Grid) -> _Pieces:
    """Return the cells themselves."""
    sides = [np.stack([(e[:-1] + e[1:]) / 2, np.diff(e) / 2], axis=-1) for e in grid]
    boxes = np.stack(np.broadcast_arrays(sides[0][:, None], sides[1][None]), axis=-1).reshape(-1, 2, 2)
    return _Pieces(boxes[:, 0], boxes[:, 1], np.arange(len(boxes)))


def _cut(pieces: _Pieces, log_density: Callable[[FloatArray], FloatArray], scale: FloatArray) -> _Pieces:
    """Halve pieces until none is wider than `scale`, and drop those with negligible density."""
    top = -np.inf
    while True:
        centre, half, cell = pieces
        values = log_density(centre)
        top = max(top, values.max())
        # A piece counts if any part of it is within FAR standard deviations: its centre may be further away by half a
        # side. A peak between the centres of wide pieces is therefore not lost.
        kept = values > top - 0.5 * (FAR + (half / scale).sum(axis=1)) ** 2
        centre, half, cell = centre[kept], half[kept], cell[kept]
        if (2 * half <= scale * (1 + 1e-9)).all():
            return _Pieces(centre, half, cell)
        for axis in range(2):
            wide = 2 * half[:, axis] > scale[axis] * (1 + 1e-9)
            half = half.copy()
            half[wide, axis] /= 2
            shift = np.zeros_like(half)
            shift[wide, axis] = half[wide, axis]
            centre = np.concatenate([centre - shift, (centre + shift)[wide]])
            half, cell = np.concatenate([half, half[wide]]), np.concatenate([cell, cell[wide]])
        pieces = _Pieces(centre, half, cell)


def total_variation(shares: FloatArray, probability: FloatArray) -> float:
    """Return the total variation distance between the chains' pooled shares (C, cells) and a distribution (cells,)."""
    return float(0.5 * np.abs(shares.mean(axis=0) - probability).sum())


def monte_carlo_distance(shares: FloatArray, probability: FloatArray) -> float:
    """Return the expected total variation distance that is due to Monte Carlo error alone.

    The larger of two estimates for C chains of a method that is right, with s_k the standard deviation of the share of
    cell k between chains:

    - (1/2) sqrt(2/pi) sum_k s_k / sqrt(C), with s_k corrected for its bias in C normal numbers. It is too small where
      cells have few visits: one that no chain has visited has none.
    - (1/2) sum_k E|X_k / N - p_k|, of N independent draws from p, with X_k Poisson of mean N p_k and each term times
      sqrt(1 - p_k). The chains are as good as N = C sum_k p_k (1 - p_k) / sum_k s_k^2 draws, a sum over all cells. It
      is too small for draws that are wider than p, and up to a third too large where chains seldom move between modes.

    NaN for a single chain.

    Args:
        shares: of the chains' draws in each cell (C, cells).
        probability: p, of each cell (cells,).
    """
    chains = len(shares)
    if chains < 2:
        return float("nan")
    spread = shares.std(axis=0, ddof=1)
    bias = math.sqrt(2 / (chains - 1)) * math.exp(math.lgamma(chains / 2) - math.lgamma((chains - 1) / 2))
    of_cells = 0.5 * math.sqrt(2 / math.pi / chains) / bias * float(spread.sum())
    rest = np.clip(1 - probability, 0, 1)  # p may be larger than 1 by rounding
    variance = float((probability * rest).sum())
    if not (of_cells > 0 and variance > 0):  # chains that do not move, or p in one cell
        return of_cells
    draws = chains * variance / float(np.square(spread).sum())
    mean = draws * probability
    # E|X - mean| = 2 exp(-mean) mean^(k + 1) / k! with k = floor(mean) (de Moivre)
    k = np.floor(mean)
    deviation = 2 * np.exp(special.xlogy(k + 1, mean) - mean - special.gammaln(k + 1))
    return max(of_cells, float(0.5 * (deviation * np.sqrt(rest)).sum() / draws))


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    se: float


def number_of(value: object) -> float:
    """Return a number, or an estimate's value; NaN for anything else."""
    if isinstance(value, Estimate):
        return value.value
    return float(value) if is_number(value) else math.nan


def chi_squared(shares: FloatArray, probability: FloatArray) -> Estimate:
    """Estimate the chi-squared divergence sum_k (q_k - p_k)^2 / p_k of the chains' distribution q from p, without bias.

    Chains are independent, so the product of the deviations of two different chains has the square as its mean. Monte
    Carlo noise cancels, unlike in a plain distance. The standard error is a jackknife over chains, on average up to 1.6
    times too large where q is p (see `mhrun.diagnostics.distances.energy_distance`). Cells with p < 1e-9 are left out.
    sqrt(chi2)/2 bounds the total variation. The value is NaN for one chain; its error is NaN for two.
    """
    kept = probability > 1e-9
    deviation = (shares[:, kept] - probability[kept]) / np.sqrt(probability[kept])

    def estimate(rows: FloatArray) -> float:
        count = len(rows)
        if count < 2:
            return float("nan")
        total = rows.sum(axis=0)
        return float((total @ total - np.square(rows).sum()) / (count * (count - 1)))

    return jackknife(estimate, deviation)


def jackknife(estimate: Callable[[FloatArray], float], rows: FloatArray) -> Estimate:
    """Return an estimate from independent rows and its jackknife standard error; NaN for a single row."""
    count = len(rows)
    if count < 2:
        return Estimate(estimate(rows), float("nan"))
    left_out = np.array([estimate(np.delete(rows, i, axis=0)) for i in range(count)])
    return Estimate(
        estimate(rows), float(np.sqrt((count - 1) / count * np.square(left_out - left_out.mean()).sum()))
    )
