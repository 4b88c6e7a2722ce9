"""Coordinates along which a posterior falls off so slowly that it has no variance, which its draws need not show."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.surface import Surface
from mhrun.target.function_space import is_network

_AT = (30.0, 300.0, 3000.0)  # distances from the mode, in standard deviations by the curvature there
_NO_VARIANCE = (
    3.0  # power of a density's decay up to which it has no variance: 2 of Cauchy's, 3 of Student's with 2
)
_TOLERANCE = 0.1  # of a power, which is measured between the distances
_SHARE = 1e-4  # of the mass near the mode, beyond the first distance
_MOST = 2_000_000  # log-likelihoods of single data that may be evaluated


class HeavyTail(NamedTuple):
    """A tail without a variance."""

    coordinate: int
    power: float  # the density falls as distance^-power


def heavy_tail(surface: Surface, mode: Tensor, curvature: Tensor) -> HeavyTail | None:
    """Return the coordinate along which a posterior falls off the most slowly, if it has no variance by that.

    The log density f is evaluated on both rays from the mode along each coordinate, with the others held fixed, at 30,
    300 and 3,000 standard deviations. Where it falls as a power s of the distance, f(r) - f(10 r) = s log 10 for both
    pairs. Without a variance s is 3 at most. Chains that move locally hardly get there: of 80,000 draws of a Cauchy
    distribution none was beyond 100, where 0.64 % of it is.

    A posterior has such a tail only if the prior has, or none: data are evaluated for such coordinates alone, and not
    at all if that would be expensive, as of many data each of which makes the posterior fall faster.

    Args:
        surface: the log posterior, of no network.
        mode: a proper mode (D,).
        curvature: minus the Hessian there (D, D).
    """
    if is_network(surface.target.model):
        return None
    mode = mode.double().cpu()
    sd = curvature.double().cpu().diagonal().clamp_min(1e-300).rsqrt()
    rays = torch.cat((torch.diag(sd), torch.diag(-sd)))
    # A model need not be defined so far out, and a class of the user's may raise any exception there.
    with suppress(Exception):
        rays = rays[_powers(_prior_at(surface, mode, rays)).amax(1) <= _NO_VARIANCE + _TOLERANCE]
        if not len(rays) or (len(_AT) * len(rays) + 1) * surface.size > _MOST:
            return None
        points = torch.cat((mode[None], _points(mode, rays).reshape(-1, len(mode))))
        heights = surface.value_and_grad(points.to(surface.target.device))[0].cpu() / surface.temperature
        at_mode, along = heights[0], heights[1:].reshape(len(rays), len(_AT))
        powers = _powers(along)
        # The mass from the first distance r on, p(r) r / (s - 1), as a share of that of a normal density at the mode
        share = along[:, 0] - at_mode + math.log(_AT[0] / math.sqrt(2 * math.pi)) - (powers[:, 0] - 1).log()
        heavy = (
            (powers.amax(1) <= _NO_VARIANCE + _TOLERANCE) & (powers.amin(1) > 1) & (share > math.log(_SHARE))
        )
        if bool(heavy.any()):
            last = torch.where(heavy, powers[:, -1], torch.inf)
            worst = int(last.argmin())
            return HeavyTail(int(rays[worst].abs().argmax()), float(last[worst]))
    return None


def _points(mode: Tensor, rays: Tensor) -> Tensor:
    """Return the points at the distances along each ray, (R, K, D)."""
    return mode + rays[:, None] * torch.tensor(_AT, dtype=torch.float64)[:, None]


def _prior_at(surface: Surface, mode: Tensor, rays: Tensor) -> Tensor:
    points = _points(mode, rays)
    found = surface.target.prior(points.reshape(-1, len(mode)).to(surface.target.device)).log_prior
    return found.cpu().reshape(len(rays), len(_AT))


def _powers(heights: Tensor) -> Tensor:
    """Return by which powers of the distance densities fall between the distances, (R, K-1); infinity where unknown."""
    found = -heights.diff(dim=1) / math.log(_AT[1] / _AT[0])
    return found.nan_to_num(nan=math.inf, posinf=math.inf, neginf=-math.inf)
