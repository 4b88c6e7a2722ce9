"""Minus the Hessian of a log posterior, and what its eigenvalues mean."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.engine.landscape.surface import Surface
from mhrun.random import Draws, Purpose, Streams, derive_key

_DIFFERENCE = 1e-4  # of a coordinate, relative, in a finite difference of gradients
# Posterior standard deviations: the largest difference of coordinates, and what a larger one becomes.
_MAX_DIFFERENCE_SDS, _REDUCED_DIFFERENCE_SDS = 0.1, 0.01
_ITERATIONS = 20  # of power iteration
_MIN_SHARE = 1e-8  # of the largest eigenvalue, that the others are at least
_MIN_SHARE_PROPER = 1e-15  # likewise at a proper mode, whose coordinates may have any units


def hessian(surface: Surface, theta: Tensor) -> Tensor:
    """Return minus the Hessian (D, D) of the surface at theta (D,), by central differences of gradients."""
    steps = _DIFFERENCE * (1 + theta.double().abs())
    curvature = _differences(surface, theta, steps)
    sds = curvature.diagonal().abs().rsqrt().to(steps)
    if bool((steps > _MAX_DIFFERENCE_SDS * sds).any()):
        curvature = _differences(surface, theta, torch.minimum(steps, _REDUCED_DIFFERENCE_SDS * sds))
    return curvature


def _differences(surface: Surface, theta: Tensor, steps: Tensor) -> Tensor:
    dim = len(theta)
    shifts = torch.diag(steps).to(theta)
    _, grads = surface.value_and_grad(torch.cat([theta + shifts, theta - shifts]))
    curvature = -(grads[:dim] - grads[dim:]).cpu() / (2 * steps.cpu())[:, None]
    return (curvature + curvature.T) / 2


def largest_curvature(surface: Surface, theta: Tensor) -> float:
    """Return the largest |eigenvalue| of the Hessian at theta (D,), by power iteration on differences of gradients."""
    streams = Streams(derive_key(0, "power"), 1, theta.device)
    direction = Draws(streams, 0).normal(Purpose.INIT, len(theta))[0].double()
    curvature = 0.0
    for _ in range(_ITERATIONS):
        direction = direction / direction.norm()
        step = _DIFFERENCE * (1 + float(theta.abs().max()))
        points = torch.stack([theta + step * direction.to(theta), theta - step * direction.to(theta)])
        _, grads = surface.value_and_grad(points)
        direction = (grads[1] - grads[0]) / (2 * step)
        curvature = float(direction.norm())
        if not curvature > 0:
            return 0.0
    return curvature


def is_degenerate(curvature: Tensor) -> bool:
    """Return whether a curvature is not that of a proper mode: an eigenvalue is negative, or 0 relative to the largest.

    This happens where the density is unbounded, as in the funnel of a hierarchical model, or flat.
    """
    eigenvalues = torch.linalg.eigvalsh(curvature)
    return bool(eigenvalues.min() <= _MIN_SHARE * eigenvalues.max())


def spectrum(curvature: Tensor, *, proper: bool = False) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (D,), positive, and eigenvectors (D, D) of a curvature; flat directions get a floor.

    The floor of a `proper` mode, where coordinates may have very different units, is lower.
    """
    values, vectors = torch.linalg.eigh(curvature)
    values = values.abs()
    least = float(values.max()) * (_MIN_SHARE_PROPER if proper else _MIN_SHARE)
    return values.clamp_min(least).clamp_min(1e-300), vectors


def units_of(curvature: Tensor) -> Tensor:
    """Return units of the coordinates in which the diagonal of a curvature is 1, (D,): 1 / sqrt(diag |H|)."""
    scales = curvature.diagonal().abs()
    return scales.clamp_min(float(scales.max()) * _MIN_SHARE_PROPER**2).rsqrt()


def standardised(curvature: Tensor) -> Tensor:
    """Return the curvature (D, D) in these units."""
    units = units_of(curvature)
    return units[:, None] * curvature * units


def below_mode(gradient: Tensor, curvature: Tensor) -> float:
    """Return g^T |H|^-1 g / 2, the nats by which a point is below the mode of a quadratic."""
    eigenvalues, vectors = torch.linalg.eigh(standardised(curvature))
    eigenvalues = eigenvalues.abs().clamp_min(float(eigenvalues.abs().max()) * _MIN_SHARE)
    return float(((vectors.T @ (units_of(curvature) * gradient)) ** 2 / eigenvalues).sum()) / 2
