"""What a posterior is far from its mode, on rays: mass that the curvature at the mode hides, and plateaus."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.landscape.surface import Surface
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.target.function_space import is_network

_MAX_PARAMETERS, _MAX_EVALUATIONS = 20, 3_000_000  # parameters, and log-likelihoods of single data, at most
_PAIRS = 8  # of opposite random rays
# Standard deviations beyond sqrt(D), within which all of a normal density is but for 1e-8, and how many times as far
# the outermost points are; the points of a ray within and beyond.
_WITHIN, _FARTHEST, _INNER, _OUTER = 6.0, 1e4, 32, 48
_LAST = 12  # points of the last quarter, which is a plateau where
_MAX_FALL = 3.0  # the log density falls at most so far there; that of Cauchy's distribution falls by 20
_SHARE = 0.01  # of the mass, that is named
_FEWEST = 2.0  # effective rays that show it
_EQUAL = 1e-9  # of a plateau at 0


class Beyond(NamedTuple):
    """Mass far from the mode."""

    radius: float  # in standard deviations by the curvature at the mode
    share: float  # of the posterior that is estimated to be beyond it


class Rays(NamedTuple):
    """What rays from the mode show."""

    beyond: Beyond | None = None
    plateau: Tensor | None = None  # (D,), a direction of length 1 in which the log posterior levels off
    is_density: bool = False  # whether it does so at 0 in all of them, as if no logarithm had been taken


def along_rays(surface: Surface, mode: Tensor, height: float, curvature: Tensor, key: int) -> Rays:
    r"""Return what random rays from the mode show, in coordinates x in which the curvature there is the identity.

    With the log density f relative to the mode and directions u uniform on the sphere, the mass beyond a radius R is

        \int_{|x| > R} e^{f(x)} dx = S E_u \int_R^\infty r^{D-1} e^{f(r u)} dr,   S the area of the sphere,

    by the trapezoidal rule in log r, and likewise within R in r. The ray with the largest contribution from beyond is
    left out, as one may hit what is rare, and fewer than two of the others that share the rest show nothing: rounding
    errors of large terms differ by many nats. A narrow peak in the middle of a wide density has its mode and curvature,
    and chains that begin there do not leave it: compared with draws, the share shows that.

    Args:
        surface: the log posterior, of no network; what is evaluated is added to its count.
        mode: a proper mode (D,).
        height: f there, as `Surface.value_and_grad`.
        curvature: minus the Hessian there (D, D).
        key: of the random directions.

    Returns:
        Nothing found with many data or parameters, and where the model cannot be evaluated.
    """
    dim, temperature = len(mode), surface.temperature
    rays = 2 if dim == 1 else 2 * _PAIRS
    expensive = rays * (_INNER + _OUTER) * surface.size > _MAX_EVALUATIONS
    if dim > _MAX_PARAMETERS or expensive or is_network(surface.target.model):
        return Rays()
    radius = math.sqrt(dim) + _WITHIN
    inner = torch.linspace(0, radius, _INNER + 1, dtype=torch.float64)[1:]
    outer = math.log(radius) + torch.linspace(0, math.log(_FARTHEST), _OUTER, dtype=torch.float64)
    # A model need not be defined so far out, and a class of the user's may raise any exception there.
    with suppress(Exception):
        directions = _directions(curvature.double().cpu() / temperature, rays, key)
        points = mode.double().cpu() + torch.cat([inner, outer.exp()])[:, None] * directions[:, None]
        values = surface.value_and_grad(points.flatten(0, 1).to(mode))[0].cpu().reshape(rays, -1)
        values = values.nan_to_num(-math.inf, -math.inf, -math.inf)  # +inf is an overflow of the model's
        falls = (height - values[:, -_LAST:].amax(1)) / temperature
        if bool((falls < _MAX_FALL).any()):
            direction = directions[int(falls.argmin())]
            is_density = bool((values[:, -_LAST:].abs() < _EQUAL).all())
            return Rays(plateau=direction / direction.norm(), is_density=is_density)
        share = _share_beyond((values - height) / temperature, inner, outer, dim)
        return Rays(beyond=Beyond(radius, share) if share >= _SHARE else None)
    return Rays()


def _directions(precision: Tensor, rays: int, key: int) -> Tensor:
    """Return pairs of opposite random directions (R, D), of length 1 in standard deviations by the precision."""
    dim = len(precision)
    z = Draws(Streams(derive_key(key, "rays"), rays // 2), 0).normal(Purpose.INIT, dim).double().cpu()
    units = torch.cat([z, -z]) / z.norm(dim=1).repeat(2)[:, None]
    return torch.linalg.solve_triangular(torch.linalg.cholesky(precision).T, units.T, upper=True).T


def _share_beyond(below: Tensor, inner: Tensor, outer: Tensor, dim: int) -> float:
    """Return the share of the mass beyond the radius.

    Args:
        below: log densities relative to the mode (R, I + O).
        inner: radii of the first of them (I,), evenly spaced from the first on.
        outer: logarithms of those of the others (O,), evenly spaced from that of the radius on.
        dim: D.
    """
    at_mode = torch.full_like(below[:, :1], 0.0 if dim == 1 else -math.inf)  # log r^(D-1)
    near = torch.cat([at_mode, below[:, : len(inner)] + (dim - 1) * inner.log()], 1)
    within = _integral(near, float(inner[0]))
    outside = _integral(below[:, len(inner) :] + dim * outer, float(outer[1] - outer[0]))
    outside = outside if dim == 1 else outside.sort().values[:-1]
    if dim > 1 and _effective(outside) < _FEWEST:
        return 0.0
    return float(torch.sigmoid(_mean(outside) - _mean(within)))


def _integral(log_values: Tensor, step: float) -> Tensor:
    """Return the logs of integrals (R,) by the trapezoidal rule, from logs of values (R, K) a step apart."""
    weights = torch.full((log_values.shape[1],), step, dtype=torch.float64)
    weights[[0, -1]] /= 2
    return torch.logsumexp(log_values + weights.log(), 1)


def _effective(logs: Tensor) -> float:
    """Return (sum w)^2 / sum w^2 of values w whose logs are given: how many of them share the sum."""
    return float((2 * torch.logsumexp(logs, 0) - torch.logsumexp(2 * logs, 0)).exp())


def _mean(logs: Tensor) -> Tensor:
    """Return the log of the mean of values whose logs are given."""
    return torch.logsumexp(logs, 0) - math.log(len(logs))
