"""Compares modes and curvature of a part of the data with all data.

The mode of a part is a few standard deviations off, and a part may have hardly any of what is rare and matters, such as
a value of a category, or a positive outcome. Modes are then moved, or found again from all data with the curvature.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.landscape.curvature import spectrum, units_of
from mhrun.engine.landscape.modes import CurvedModes, find_curved_modes
from mhrun.engine.landscape.surface import Surface

_NEARLY_ALL = 0.8  # share of the data that has nearly all of anything
_AFFORDABLE = 3e10  # numbers that the curvature of all data may take
# A coordinate without data
_NOTHING = 1e-12  # its curvature, as a share of the largest one
_MORE = 10.0  # times that its gradient changes more on all data if some of them concern it
# Newton steps towards the mode of all data
_STEPS = 3
_OFF = 0.5  # standard deviations of the tempered target that the mode may be off
_FARTHEST = 20.0  # times the expected distance that a step may be
_SLOW = 0.5  # a step longer than this share of the one before: the curvature is not that of all data
# Random points, a standard deviation off in each direction
_PROBES = 2
_MISFIT = 0.3  # a gradient that is off by a larger share: the curvature is not that of all data


def without_absent(surface: Surface, curved: CurvedModes) -> tuple[Surface, CurvedModes]:
    """Return a surface and its modes: those of all data if the given part has nothing of what decides on a coordinate.

    For example, no datum of the part has some value of a category: the coordinate is flat there if its prior is, and
    the posterior would seem to be improper.
    """
    curvature, n = curved.curvature, surface.target.n
    if curved.proper or curvature is None or surface.size > _NEARLY_ALL * n:
        return surface, curved
    diagonal = curvature.diagonal().abs()
    flat = diagonal <= _NOTHING * diagonal.max()
    if not bool(flat.any()) or 2.0 * len(curvature) ** 2 * n > _AFFORDABLE:
        return surface, curved
    whole, mode = surface.of_all_data(), curved.modes.theta[curved.modes.best]
    points = torch.stack([mode, mode + flat.to(mode)])
    part, all_data = (each.value_and_grad(points)[1].cpu() for each in (surface, whole))
    changes, on_part = ((grad[1] - grad[0])[flat].abs().max() for grad in (all_data, part))
    if not float(changes) > _MORE * float(on_part):
        return surface, curved
    return whole, find_curved_modes(whole, curved.modes.theta)


class OnAllData(NamedTuple):
    """Where chains begin on all data, and the modes and curvature that are known."""

    theta: Tensor  # (C, D)
    surface: Surface
    curved: CurvedModes  # of the surface


def moved_to_all_data(surface: Surface, curved: CurvedModes) -> OnAllData:
    """Return modes of a part of the data, moved to those of all data.

    By Newton steps, which take a pass over the data each. Where these, or gradients at two random points, show that the
    curvature is not that of all data modes and curvature are computed from all of them, if that takes no more than 3e10
    numbers. This happens if the part has hardly any rare but informative data, such as those with some value of a
    category, or a positive outcome.

    Args:
        surface: of the part; what is evaluated is added to its count.
        curved: its modes, with the curvature at the highest one.
    """
    modes, n = curved.modes.theta, surface.target.n
    assert curved.curvature is not None
    if surface.size > _NEARLY_ALL * n:
        return OnAllData(modes, surface, curved)
    error = math.sqrt(n / surface.size - 1)
    moved = _Moved(modes, True)
    if error > _OFF * math.sqrt(surface.temperature):
        moved = _by_newton_steps(surface, curved, error)
    can_tell = curved.proper and 2.0 * modes.shape[1] ** 2 * n <= _AFFORDABLE
    if can_tell and not (moved.fits and _has_curvature(surface, moved.theta[curved.modes.best], curved)):
        whole = surface.of_all_data()
        curved_on_all = find_curved_modes(whole, modes, units_of(curved.curvature))
        if curved_on_all.proper:
            return OnAllData(curved_on_all.modes.theta, whole, curved_on_all)
    return OnAllData(moved.theta, surface, curved)


def _has_curvature(surface: Surface, mode: Tensor, curved: CurvedModes) -> bool:
    """Return whether gradients on all data near a mode (D,) change as the curvature H says: by -H times the distance.

    At random points, a standard deviation off in each direction at T = 1.
    """
    assert curved.curvature is not None
    eigenvalues, vectors = spectrum(curved.curvature, proper=curved.proper)
    z = torch.randn(_PROBES, len(mode), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    offsets = torch.cat([torch.zeros_like(z[:1]), (z / eigenvalues.sqrt()) @ vectors.T])
    points = (mode.double().cpu() + offsets).to(mode)
    temperature = torch.full((len(points),), surface.temperature, dtype=torch.float64, device=mode.device)
    grad = surface.target.gradients.full(points, temperature).double().cpu()
    surface.n_grad += len(points) * surface.target.n
    off = (((grad[1:] - grad[0]) @ vectors) / eigenvalues.sqrt() + z).norm(dim=1)
    return bool((off <= _MISFIT * z.norm(dim=1)).all())


class _Moved(NamedTuple):
    theta: Tensor  # (C, D)
    fits: bool  # whether the curvature may be that of all data


def _by_newton_steps(surface: Surface, curved: CurvedModes, error: float) -> _Moved:
    """Return modes of a part of the data, moved towards those of all data.

    The mode of a part is about sqrt(n / size - 1) standard deviations of the posterior at T = 1 off. Where that is more
    than half a standard deviation of the target, chains would begin in its tails, and a pilot would tune its step size
    there. A step s solves H s = g, with the curvature H of the part and the gradient g on all data. Modes that are the
    same but for this error are moved once.

    Args:
        surface: of the part; what is evaluated is added to its count.
        curved: its modes, with the curvature at the highest one.
        error: of the mode of a part, in standard deviations.
    """
    modes, best, target = curved.modes.theta, curved.modes.best, surface.target
    assert curved.curvature is not None
    fits = True
    eigenvalues, vectors = spectrum(curved.curvature, proper=curved.proper)
    # (D, D): |scaled x| is a distance in standard deviations at T = 1.
    scaled = (vectors * eigenvalues.sqrt()).T
    starts = modes.double().cpu().clone()
    offsets = (starts - starts[best]) @ scaled.T
    starts[offsets.norm(dim=1) < error] = starts[best].clone()
    points, indices = starts.unique(dim=0, return_inverse=True)
    temperature = torch.full((len(points),), surface.temperature, dtype=torch.float64, device=modes.device)
    before = math.inf
    for _ in range(_STEPS):
        grad = target.gradients.full(points.to(modes), temperature).double().cpu()
        surface.n_grad += len(points) * target.n
        step = ((grad @ vectors) / eigenvalues) @ vectors.T
        distance = float((step @ scaled.T).norm(dim=1).max())
        is_near = distance < _OFF * math.sqrt(surface.temperature)
        fits = fits and (is_near or distance < _SLOW * before)
        # Where the density is no quadratic, points are better not moved.
        if not distance < _FARTHEST * error * math.sqrt(len(scaled)):
            return _Moved(modes, False)
        points, before = points + step, distance
        if is_near:
            break
    return _Moved(points[indices].to(modes), fits)
