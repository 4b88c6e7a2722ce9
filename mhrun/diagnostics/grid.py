"""Distances between draws and a density, on a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


class Grid(NamedTuple):
    """A rectangle cut into cells, in two dimensions."""

    x: Array  # edges
    y: Array

    @classmethod
    def of(cls, low: tuple[float, float], high: tuple[float, float], cells: int) -> Grid:
        """Return `cells` equal cells each way."""
        return cls(np.linspace(low[0], high[0], cells + 1), np.linspace(low[1], high[1], cells + 1))

    def shares(self, draws: Array) -> Array:
        """Return the share of each chain's draws (C, S, 2) in each cell, and last the share outside: (C, cells + 1)."""
        columns, rows = len(self.x) - 1, len(self.y) - 1
        out = np.empty((len(draws), columns * rows + 1))
        for c, chain in enumerate(draws):
            # The cells are equal, so that a draw's cell is arithmetic: ten times faster than a search.
            i = np.floor((chain[:, 0] - self.x[0]) * (columns / (self.x[-1] - self.x[0])))
            j = np.floor((chain[:, 1] - self.y[0]) * (rows / (self.y[-1] - self.y[0])))
            inside = (i >= 0) & (i < columns) & (j >= 0) & (j < rows)
            cell = np.where(inside, i * rows + j, columns * rows).astype(np.int64)
            out[c] = np.bincount(cell, minlength=columns * rows + 1) / len(chain)
        return out


def log_masses(log_density: Callable[[Array], Array], grid: Grid, points: int = 2) -> Array:
    """Return the log of the integral of exp(log_density) over each cell (cells,).

    Gauss-Legendre quadrature with `points` a side in each cell; `log_density` is (P, 2) -> (P,).
    """
    nodes, weights = np.polynomial.legendre.leggauss(points)

    def placed(edges: Array) -> tuple[Array, Array]:
        half = np.diff(edges) / 2
        return ((edges[:-1] + half)[:, None] + half[:, None] * nodes).ravel(), (
            half[:, None] * weights
        ).ravel()

    (x, wx), (y, wy) = placed(grid.x), placed(grid.y)
    theta = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    values = log_density(theta).reshape(len(x), len(y))
    top = values.max()
    mass = np.exp(values - top) * np.outer(wx, wy)
    cells = mass.reshape(len(grid.x) - 1, points, len(grid.y) - 1, points).sum(axis=(1, 3))
    with np.errstate(divide="ignore"):
        return (np.log(cells) + top).ravel()


def total_variation(shares: Array, probability: Array) -> float:
    """Return the total variation distance between the chains' pooled shares (C, cells) and a law (cells,)."""
    return float(0.5 * np.abs(shares.mean(axis=0) - probability).sum())


def monte_carlo_distance(shares: Array) -> float:
    """Return the total variation distance that Monte Carlo error alone brings about, on average.

    From the spread of the chains' shares (C, cells) about their mean: what `total_variation` would show
    of chains whose law is exactly right.
    """
    error = shares.std(axis=0, ddof=1) / np.sqrt(len(shares))
    return float(0.5 * np.sqrt(2 / np.pi) * error.sum())


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    se: float


def chi_squared(shares: Array, probability: Array) -> Estimate:
    """Estimate the chi-squared divergence sum_k (q_k - p_k)^2 / p_k of the chains' law q from p, without bias.

    Chains are independent, so the product of two different chains' deviations has the square as its
    mean: Monte Carlo noise cancels, which it does not in a plain distance. The standard error is a
    jackknife over chains. Cells with p < 1e-9 are left out. sqrt(chi2)/2 bounds the total variation.
    """
    kept = probability > 1e-9
    deviation = (shares[:, kept] - probability[kept]) / np.sqrt(probability[kept])

    def estimate(rows: Array) -> float:
        count = len(rows)
        total = rows.sum(axis=0)
        return float((total @ total - np.square(rows).sum()) / (count * (count - 1)))

    return jackknife(estimate, deviation)


def jackknife(estimate: Callable[[Array], float], rows: Array) -> Estimate:
    """Return an estimate from independent rows and its jackknife standard error."""
    count = len(rows)
    left_out = np.array([estimate(np.delete(rows, i, axis=0)) for i in range(count)])
    return Estimate(
        estimate(rows), float(np.sqrt((count - 1) / count * np.square(left_out - left_out.mean()).sum()))
    )
