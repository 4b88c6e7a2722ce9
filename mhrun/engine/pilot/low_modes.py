"""Modes that have hardly a share of the posterior, where ascents end."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.curvature import hessian
from mhrun.engine.modes import Mode
from mhrun.engine.surface import Surface

_MAX_NATS = 50.0  # of the mass of a mode below that of the highest, up to which chains may begin there
_FLAT_WIDTH = 1e3  # of a direction without curvature, in widths of the widest direction of the highest mode
_TRIED = 8  # starting points
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
    best = _log_width(curvature, None)
    floor = float(torch.linalg.eigvalsh(curvature.double()).min()) / _FLAT_WIDTH**2
    without, shares = [], []
    for c, height in zip(low, heights[1:], strict=True):
        at_end = hessian(surface, ends[c].to(modes.theta.dtype))
        if not bool(at_end.isfinite().all()):
            continue
        # T enters both volumes alike.
        below = (heights[0] - height) / temperature + best - _log_width(at_end, floor)
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

    So it is in the neck of a funnel, which is high and has hardly any mass: chains that begin there take long to leave
    it. The mass at a point is exp(f / T) det(H / T)^(-1/2), as at a mode, if the density is log-concave there, with no
    direction wider than the widest at the mode.

    Args:
        surface: of all data; what is evaluated is added to its count.
        modes: where ascents ended.
        curvature: minus the Hessian (D, D) at the highest one, which is proper.
        theta: the starting points (C, D).

    Returns:
        None where the mode has the mass, or no less than e^-10 of it.
    """
    if surface.size < surface.target.n:
        return None
    heights, _ = surface.value_and_grad(theta[:_TRIED])
    eigenvalues = torch.linalg.eigvalsh(curvature.double())
    floor = float(eigenvalues.min())
    of_mode = modes.height / surface.temperature + _log_width(curvature, floor)
    best = int(heights.nan_to_num(-math.inf, -math.inf, -math.inf).argmax())
    height = float(heights[best]) / surface.temperature
    if (
        not height - 0.5 * len(curvature) * math.log(floor) > of_mode + _NECK
    ):  # it has less however wide it is
        return None
    at_start = hessian(surface, theta[best])
    if not bool(at_start.isfinite().all()) or float(torch.linalg.eigvalsh(at_start).min()) <= 0:
        return None
    nats = height + _log_width(at_start, floor) - of_mode
    return nats if nats > _NECK else None


def _log_width(curvature: Tensor, floor: float | None) -> float:
    """Return -1/2 log det H, with eigenvalues of `floor` at least."""
    eigenvalues = torch.linalg.eigvalsh(curvature.double())
    eigenvalues = eigenvalues.abs() if floor is None else eigenvalues.clamp_min(floor)
    return -0.5 * float(eigenvalues.log().sum())
