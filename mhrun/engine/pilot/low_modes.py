"""Modes that have hardly a share of the posterior, where ascents end."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.curvature import hessian, units_of
from mhrun.engine.modes import Mode
from mhrun.engine.surface import Surface

_MAX_NATS = 50.0  # of the mass of a mode below that of the highest, up to which chains may begin there
_FLAT_WIDTH = 1e3  # of a direction without curvature, in widths of the widest direction of the highest mode
# Eigenvalue of the curvature of a mode in its units, relative to the largest one, below which it is rounding
_LEAST = 1e-12
# Starting points, and gradients of single data that may be evaluated for them
_TRIED, _AFFORDABLE = 8, 20_000_000
# Nats by which the mode may be higher, for each parameter: no start is a million times as wide. How many the density
# may fall within a width, and how often a width is divided by 4 until it does.
_WIDER, _FALL, _SHRUNK = 14.0, 1.5, 12
_NECK = 10.0  # nats of mass that a starting point has more than the highest mode, from which on chains begin there


class Moved(NamedTuple):
    """What became of ascents to modes that have hardly a share of the posterior."""

    ascents: int  # that ended at one
    of: int  # ascents
    nats: float  # minus the log of the share of the largest of them


def without_low_modes(surface: Surface, modes: Mode, curvature: Tensor) -> tuple[Mode, Moved | None]:
    """Return modes with those that have hardly a share of the posterior replaced by the highest one.

    The mass of a mode is exp(f / T) det(H / T)^(-1/2), by Laplace's approximation, with f on all data: chains stay at
    the mode where they begin, and e^-50 of the posterior is worth none of them. A direction in which a low mode has no
    curvature, as at the edge of a constraint, counts as a thousand times as wide as the widest of the highest mode.
    Ascents end at such modes from poor starting points, such as draws from a prior.

    Args:
        surface: on which the ascents were; what is evaluated is added to its count.
        modes: where they ended.
        curvature: minus the Hessian (D, D) at the highest one.

    Returns:
        The modes, and what became of the low ones, if there are any.
    """
    temperature, count = surface.temperature, min(len(modes.heights), len(modes.theta))
    ends = modes.theta[:count]
    # A mode of less height than this has less mass unless it is far wider: its curvature decides.
    low = [c for c in range(count) if modes.height - modes.heights[c] > _MAX_NATS * temperature]
    if not low:
        return modes, None
    heights = surface.on_all_data(ends[[modes.best, *low]]).tolist()
    units, of_curvature, floor = _spectrum(curvature)
    best, floor = _log_width(of_curvature, floor), floor / _FLAT_WIDTH**2
    without, shares = [], []
    for c, height in zip(low, heights[1:], strict=True):
        at_end = hessian(surface, ends[c].to(modes.theta.dtype))
        if not bool(at_end.isfinite().all()):
            continue
        # T enters both volumes alike.
        below = (heights[0] - height) / temperature + best - _log_width(_eigenvalues(at_end, units), floor)
        if below > _MAX_NATS:
            without.append(c)
            shares.append(below)
    if not without:
        return modes, None
    is_low = torch.tensor([c % count in without for c in range(len(modes.theta))], device=modes.theta.device)
    theta = torch.where(is_low[:, None], modes.theta[modes.best], modes.theta)
    return modes._replace(theta=theta), Moved(len(without), count, min(shares))


def nats_below_starts(surface: Surface, modes: Mode, curvature: Tensor, theta: Tensor) -> float | None:
    """Return by how many nats the mass at the highest mode is below that at the best of the starting points.

    This happens in the neck of a funnel, which is high and has hardly any mass: chains that begin there take long to
    leave it. The mass at a point is exp(f / T) times its widths in the directions of its curvature, which are those by
    the curvature as at a mode, but no wider than the density is found to be: within a width it falls by 1.5 nats at
    most on one side.

    Args:
        surface: of all data; what is evaluated is added to its count.
        modes: where ascents ended.
        curvature: minus the Hessian (D, D) at the highest one, which is proper.
        theta: the starting points (C, D).

    Returns:
        None where the mode has the mass, or no less than e^-10 of it, and with many data or parameters.
    """
    dim, temperature = len(curvature), surface.temperature
    of_a_start = 4 * dim * surface.size  # gradients of single data
    if surface.size < surface.target.n or of_a_start > _AFFORDABLE:
        return None
    tried = theta[: max(1, min(_TRIED, _AFFORDABLE // (10 * of_a_start)))].unique(dim=0)
    heights = (surface.value_and_grad(tried)[0] / temperature).nan_to_num(-math.inf, -math.inf, -math.inf)
    units, of_curvature, floor = _spectrum(curvature)
    log_widths = _log_width(of_curvature, floor) + float(units.log().sum())
    of_mode = modes.height / temperature + log_widths + 0.5 * dim * math.log(temperature)
    mode, nats = modes.theta[modes.best].double().cpu(), -math.inf
    for start, height in zip(tried, heights.tolist(), strict=True):
        if modes.height / temperature - height > _WIDER * dim:
            continue
        # A model need not be defined beside a start, and a class of the user's may raise any exception there.
        with suppress(Exception):
            widths = _widths(surface, start, height, mode)
            if widths is not None:
                nats = max(nats, height + float(widths.log().sum()) - of_mode)
    return nats if nats > _NECK else None


def _widths(surface: Surface, start: Tensor, height: float, mode: Tensor) -> Tensor | None:
    """Return how wide the density is at a point (D,) in the directions of its curvature, (D,); None if that fails."""
    curvature = hessian(surface, start)
    if not bool(curvature.isfinite().all()) or not bool(curvature.diagonal().abs().max() > 0):
        return None
    units, center = units_of(curvature), start.double().cpu()
    eigenvalues, vectors = torch.linalg.eigh(units[:, None] * curvature.double() * units)
    directions = (units[:, None] * vectors).T  # (D, D)
    farthest = 10 * (float((center - mode).norm()) + 1) / directions.norm(dim=1)
    widths = torch.minimum(math.sqrt(surface.temperature) * eigenvalues.abs().rsqrt(), farthest)
    for _ in range(_SHRUNK):
        offsets = widths[:, None] * directions
        points = torch.cat([center + offsets, center - offsets]).to(start)
        found = (surface.value_and_grad(points)[0].cpu() / surface.temperature).reshape(2, -1)
        is_wide = found.nan_to_num(-math.inf, -math.inf, -math.inf).amax(0) < height - _FALL
        if not bool(is_wide.any()):
            break
        widths[is_wide] /= 4
    # The volume of the widths is that of the box of the directions, whose determinant is that of the units.
    return widths * units


def _spectrum(curvature: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return units (D,) in which the diagonal of the curvature of a mode is 1, its eigenvalues in them, and the least.

    Without the units the least eigenvalue is rounding where those of the parameters differ by factors of 1e8.
    """
    units = units_of(curvature.double())
    eigenvalues = _eigenvalues(curvature, units)
    return units, eigenvalues, max(float(eigenvalues.min()), _LEAST * float(eigenvalues.max()))


def _eigenvalues(curvature: Tensor, units: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(units[:, None] * curvature.double() * units)


def _log_width(eigenvalues: Tensor, floor: float) -> float:
    """Return -1/2 log det H from the eigenvalues, which count as `floor` at least."""
    return -0.5 * float(eigenvalues.clamp_min(floor).log().sum())
