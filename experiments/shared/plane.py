"""Mixtures of Gaussians in the plane: their draws, and densities of both, smoothed alike."""

from __future__ import annotations

import math

import numpy as np
from scipy.ndimage import gaussian_filter

from mhrun.diagnostics.grid import Grid
from mhrun.report.vocabulary import Array, Run

SMOOTH = 1.0  # standard deviation of the kernel, in cells


def density(draws: Array, grid: Grid) -> Array:
    """Return a kernel estimate of the density of draws (S, 2) on a grid's cells."""
    shares = grid.shares(draws[None])[0, :-1].reshape(len(grid.x) - 1, len(grid.y) - 1)
    area = (grid.x[1] - grid.x[0]) * (grid.y[1] - grid.y[0])
    smooth: Array = gaussian_filter(shares / area, SMOOTH, mode="constant")
    return smooth


def mixture_density(centres: Array, variance: float, grid: Grid) -> Array:
    """Return the density of Gaussians of equal weights and variances about centres (K, 2), smoothed in the same way."""
    spread = variance + (SMOOTH * (grid.x[1] - grid.x[0])) ** 2
    x, y = (0.5 * (edges[1:] + edges[:-1]) for edges in grid)
    parts = [np.exp(-np.add.outer(np.square(x - a), np.square(y - b)) / (2 * spread)) for a, b in centres]
    mean_density: Array = np.sum(parts, axis=0) / (len(parts) * 2 * math.pi * spread)
    return mean_density


def centres(run: Run) -> Array:
    """Return the centres of a run's mixture (K, 2)."""
    return np.array(run.config["model"]["centres"], float)


def variance(run: Run) -> float:
    """Return the variance of its components."""
    return float(run.config["model"]["variances"])


def collected(run: Run, method: str) -> list[Array]:
    """Return the draws of each chain, or of each ladder's coldest chain (S, 2), restricted to valid draws."""
    draws = run.draws(method, marked=True)
    return [chain[valid] for chain, valid in zip(draws, run.valid(method), strict=True)]
