"""Laplace's approximation: the normal density at a mode, and the mass that it gives the mode."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.landscape.curvature import hessian, units_of
from mhrun.engine.landscape.surface import Surface

# Eigenvalue of the curvature of a mode in its units, relative to the largest one, below which it is rounding
_LEAST = 1e-12


class NormalMode(NamedTuple):
    """A mode of the tempered posterior with its normal density, N(theta, precision^-1)."""

    theta: Tensor  # (D,), float64
    precision: Tensor  # (D, D), minus the Hessian of the tempered log posterior, float64
    height: float  # the tempered log posterior

    def squared_distances(self, points: Tensor) -> Tensor:
        """Return the squared distances of points (P, D), in standard deviations (P,)."""
        away = points - self.theta
        return (away @ self.precision * away).sum(1).clamp_min(0.0)

    def log_density(self, points: Tensor) -> Tensor:
        """Return the normal log density at points (P, D), but for a constant: (P,)."""
        return 0.5 * torch.logdet(self.precision) - 0.5 * self.squared_distances(points)

    @property
    def log_mass(self) -> float:
        """The log of exp(height) det(precision)^(-1/2), the mass by Laplace's approximation but for a constant."""
        return self.height - 0.5 * float(torch.logdet(self.precision))

    def is_apart(self, other: NormalMode, distance: float) -> bool:
        """Return whether another mode is at least so many standard deviations away, by the curvature at either."""
        squared = (
            self.squared_distances(other.theta[None]),
            other.squared_distances(self.theta[None]),
        )
        return all(not float(each) < distance**2 for each in squared)


def normal_mode(surface: Surface, theta: Tensor, curvature: Tensor | None = None) -> NormalMode:
    """Return the mode at theta (D,) with its normal density at the temperature of the surface.

    Args:
        surface: the log posterior; what is evaluated is added to its count.
        theta: an end of an ascent.
        curvature: minus the Hessian (D, D) there, if it is known.
    """
    height = float(surface.value_and_grad(theta[None])[0]) / surface.temperature
    curvature = hessian(surface, theta) if curvature is None else curvature
    return NormalMode(theta.double().cpu(), curvature.double().cpu() / surface.temperature, height)


def shares(modes: list[NormalMode]) -> Tensor:
    """Return the share of each mode in the mass of all (K,); 0 of one whose mass is unknown."""
    masses = torch.tensor([each.log_mass for each in modes], dtype=torch.float64)
    return masses.nan_to_num(-math.inf, -math.inf, -math.inf).softmax(0)


class Spectrum(NamedTuple):
    """The eigenvalues of the curvature of a mode, in units in which its diagonal is 1.

    Without the units the least eigenvalue is rounding where those of the parameters differ by factors of 1e8.
    """

    units: Tensor  # (D,)
    eigenvalues: Tensor  # (D,)
    least: float  # the least of them, or what is rounding if that is more

    @classmethod
    def of(cls, curvature: Tensor) -> Spectrum:
        """Return the spectrum of a curvature (D, D)."""
        units = units_of(curvature.double())
        eigenvalues = torch.linalg.eigvalsh(units[:, None] * curvature.double() * units)
        return cls(units, eigenvalues, max(float(eigenvalues.min()), _LEAST * float(eigenvalues.max())))

    @property
    def log_width(self) -> float:
        """The log of det(H)^(-1/2) in the units; no eigenvalue counts as less than `least`."""
        return _log_width(self.eigenvalues, self.least)

    def log_width_of(self, curvature: Tensor, flat: float) -> float:
        """Return the same of another curvature (D, D); a flat direction counts as `flat` times as wide as any here."""
        eigenvalues = torch.linalg.eigvalsh(self.units[:, None] * curvature.double() * self.units)
        return _log_width(eigenvalues, self.least / flat**2)


def _log_width(eigenvalues: Tensor, floor: float) -> float:
    return -0.5 * float(eigenvalues.clamp_min(floor).log().sum())
