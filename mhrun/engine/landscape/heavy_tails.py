"""Directions in which a posterior falls off so slowly that it has no variance, which its draws need not show."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.landscape.curvature import hessian
from mhrun.engine.landscape.surface import Surface
from mhrun.target.function_space import is_network

_DISTANCES = (30.0, 300.0, 3000.0)  # from the mode, in standard deviations by the curvature there
# Power of a density's decay up to which it has no variance: 2 of Cauchy's, 3 of Student's with 2 degrees of freedom
_NO_VARIANCE = 3.0
_TOLERANCE = 0.1  # of a power, which is measured between the distances
_LIGHT = 100.0  # above it a tail is no power: that of normal and exponential tails grows with the distance
_SHARE = 1e-4  # of the mass near the mode, beyond the first distance
_MOST_EVALUATIONS = 2_000_000  # log-likelihoods of single data
_JUDGED = 4  # rays with the least powers that are judged with the curvature along them


class HeavyTail(NamedTuple):
    """A tail without a variance."""

    direction: Tensor  # (D,), of length 1
    power: float  # the density falls as distance^-power


def heavy_tail(surface: Surface, mode: Tensor, curvature: Tensor) -> HeavyTail | None:
    """Return the direction in which a posterior falls off the most slowly, if it has no variance there.

    The log density f is evaluated on both rays from the mode along each coordinate, and along the one from the origin
    through the mode (which remains on the right side of a plane that separates two classes), at 30, 300 and 3,000
    standard deviations r. The density of the coordinate along a ray is, by Laplace's approximation in the others,

        log p(r) = f(r) + g^T H^-1 g / 2 - log det H / 2

    with their gradient g and curvature H there. Where it falls as a power s of the distance, p(r) / p(10 r) = 10^s for
    both pairs; without a variance s is 3 at most. Chains that move locally hardly get there: of 80,000 draws of a
    Cauchy distribution none was beyond 100, where 0.64 % of it is.

    A posterior has such a tail only if the prior has along that ray, or none: data are evaluated for such rays alone,
    and not at all if that would be expensive, as of many data each of which makes the posterior fall faster. Tails in
    other directions are not found.

    Args:
        surface: the log posterior, of no network.
        mode: a proper mode (D,).
        curvature: minus the Hessian there (D, D).
    """
    if is_network(surface.target.model):
        return None
    mode, curvature = mode.double().cpu(), curvature.double().cpu()
    directions = _directions(mode)
    rays = directions / ((directions @ curvature) * directions).sum(1).clamp_min(1e-300).sqrt()[:, None]
    points = _points(mode, rays)
    prior = _prior_at(surface, points)
    if prior is None:
        return None
    kept = _powers(prior).amax(1) <= _LIGHT
    rays, points = rays[kept], points[kept]
    if not len(rays) or (len(_DISTANCES) * len(rays) + 1) * surface.size > _MOST_EVALUATIONS:
        return None
    heights = _heights(surface, torch.cat((mode[None], points.flatten(0, 1))))
    if heights is None:
        return None
    along = heights[1:].reshape(len(rays), len(_DISTANCES))
    powers = _powers(along)
    is_power = (powers.amax(1) <= _LIGHT) & (powers.amin(1) > 1)
    heavy: list[HeavyTail] = []
    for place in powers[:, -1].argsort()[:_JUDGED].tolist():
        if bool(is_power[place]):
            tail = _judged(surface, rays[place], points[place], along[place] - heights[0], curvature)
            heavy += [] if tail is None else [tail]
    return min(heavy, key=lambda tail: tail.power, default=None)


def _directions(mode: Tensor) -> Tensor:
    """Return the directions of the rays (R, D), of length 1."""
    axes = torch.eye(len(mode), dtype=torch.float64)
    through = [mode[None] / mode.norm()] if len(mode) > 1 and float(mode.norm()) > 0 else []
    return torch.cat((axes, -axes, *through))


def _judged(
    surface: Surface, ray: Tensor, points: Tensor, below: Tensor, curvature: Tensor
) -> HeavyTail | None:
    """Return the tail along a ray (D,) if it has no variance, from points (K, D) and their heights over the mode."""
    direction, temperature = ray / ray.norm(), surface.temperature
    others = torch.linalg.qr(torch.cat((direction[:, None], torch.eye(len(ray), dtype=torch.float64)), 1))[0]
    others = others[:, 1:]  # (D, D-1), orthogonal to it
    widths = [_log_width(others.T @ curvature @ others / temperature)]
    for point in points:
        try:
            at = hessian(surface, point.to(surface.target.device)) / temperature
            _, gradient = surface.value_and_grad(point[None].to(surface.target.device))
        except Exception:  # a user's model may raise any so far out
            return None
        across = others.T @ at @ others
        pull = others.T @ gradient[0].cpu() / temperature
        width = _log_width(across)
        if width is None or not bool(pull.isfinite().all()):
            return None
        nearer = 0.5 * float(pull @ torch.linalg.solve(across, pull)) if len(pull) else 0.0
        widths.append(width + nearer)
    if widths[0] is None:
        return None
    marginal = below + torch.tensor(widths[1:], dtype=torch.float64) - widths[0]
    powers = _powers(marginal[None])[0]
    if not (float(powers.max()) <= _NO_VARIANCE + _TOLERANCE and float(powers.min()) > 1):
        return None
    # The mass from the first distance r on, p(r) r / (s - 1), as a share of that of a normal density at the mode
    mass = float(marginal[0]) + math.log(_DISTANCES[0] / math.sqrt(2 * math.pi * temperature))
    share = mass - math.log(float(powers[0]) - 1)
    return HeavyTail(direction, float(powers[-1])) if share > math.log(_SHARE) else None


def _log_width(curvature: Tensor) -> float | None:
    """Return -log det H / 2; None if H is not positive definite."""
    root, wrong = torch.linalg.cholesky_ex(curvature)
    return None if int(wrong) else -float(root.diagonal().log().sum())


def _points(mode: Tensor, rays: Tensor) -> Tensor:
    """Return the points at the distances along each ray, (R, K, D)."""
    return mode + rays[:, None] * torch.tensor(_DISTANCES, dtype=torch.float64)[:, None]


def _prior_at(surface: Surface, points: Tensor) -> Tensor | None:
    """Return the log prior at points (R, K, D), at the target's temperature; None if it cannot be evaluated."""
    # A model need not be defined so far out, and a class of the user's may raise any exception there.
    with suppress(Exception):
        found = surface.target.prior(points.flatten(0, 1).to(surface.target.device)).log_prior
        power = surface.target.prior_power(torch.tensor([surface.temperature], dtype=torch.float64))
        return found.cpu().reshape(points.shape[:2]) * power
    return None


def _heights(surface: Surface, points: Tensor) -> Tensor | None:
    """Return the log density at points (P, D); None if it cannot be evaluated."""
    with suppress(Exception):
        return surface.value_and_grad(points.to(surface.target.device))[0].cpu() / surface.temperature
    return None


def _powers(heights: Tensor) -> Tensor:
    """Return by which powers of the distance densities fall between the distances, (R, K-1); infinity where unknown."""
    found = -heights.diff(dim=1) / math.log(_DISTANCES[1] / _DISTANCES[0])
    return found.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
