"""Modes of the posterior from a part of the data, for pilots; a surrogate finds its own (`mhrun.target.reference`)."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # which imports its subpackages on first use
import torch
from torch import Tensor

from mhrun.engine.pilot.curvature import below_mode, hessian, is_degenerate, spectrum, standardised, units_of
from mhrun.engine.surface import Surface

_MODES = 4  # chains that an ascent begins from
_ITERATIONS = 200
# L-BFGS is restarted, without its memory of earlier gradients, where the gradient times 1 + |theta| is above this share
# of the height: below a steep wall, as exp makes, it takes a small relative change for convergence.
_STEEP, _ASCENTS = 1e-2, 10
_LOST = 1e3  # nats per datum below the highest end, at which an ascent has not left its wall
_OFF = 0.5  # standard deviations of the tempered target that the mode of a part of the data may be off
# Steps towards the mode of all data, and how many times the expected distance one may be
_NEWTON, _FARTHEST = 3, 20.0
# A step that is longer than this share of the one before shows that the curvature of the part is not that of all data,
# and so does a gradient at `_PROBES` random points, a standard deviation off in each direction, that is off by more
# than this share. The curvature of all data is then computed, if it takes no more numbers.
_SLOW, _PROBES, _MISFIT, _AFFORDABLE = 0.5, 2, 0.3, 3e10
# Of the largest curvature, which is that of a coordinate without data; and by what its gradient changes more on all
# data if some of these are of it.
_NOTHING, _MORE = 1e-12, 10.0
_NEARLY_ALL = 0.8  # share of the data that has nearly all of anything
_SCALINGS = 2  # restarts of ascents in coordinates scaled by the curvature
# How far below its mode, as a quadratic, an end is at most; and as a share of its height
_NATS, _RELATIVE = 0.05, 1e-8


class Mode(NamedTuple):
    """Modes of a surface."""

    theta: Tensor  # (C, D), where each chain's ascent ended; of many chains they are shared
    best: int  # the chain with the highest one
    height: float  # there
    gradient: Tensor  # (D,) there, float64
    heights: list[
        float
    ]  # where each of the ascents ended, of which chain c has the one numbered c mod their number


def find_modes(surface: Surface, theta: Tensor, units: Tensor | None = None) -> Mode:
    """Return the modes that ascents by L-BFGS end at, from the first points of the chains theta (C, D).

    An ascent that fails, as from a point where the density is not finite, is replaced by the one with the highest end.

    Args:
        surface: to ascend.
        theta: where ascents begin.
        units: of the coordinates that L-BFGS sees, (D,); None: 1.
    """
    ends, heights, gradients = [], [], []
    for start in theta[:_MODES].double().cpu():
        end, height, gradient = _ascent(
            surface, start.numpy(), theta, np.ones(len(start)) if units is None else units.numpy()
        )
        ends.append(torch.from_numpy(end))
        heights.append(height)
        gradients.append(torch.from_numpy(gradient))
    best = int(np.argmax(heights))
    least = heights[best] - _LOST * surface.target.n
    ends = [end if height >= least else ends[best] for end, height in zip(ends, heights, strict=True)]
    modes = torch.stack(ends)[torch.arange(len(theta)) % len(ends)]
    return Mode(modes.to(theta.device), best, heights[best], gradients[best], heights)


def _ascent(
    surface: Surface, start: npt.NDArray[np.float64], like: Tensor, units: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], float, npt.NDArray[np.float64]]:
    """Return where an ascent by L-BFGS ends (D,), its height and its gradient (D,).

    It is restarted where it stops although the gradient is large.
    """
    height = -math.inf
    for _ in range(_ASCENTS):
        optimum = scipy.optimize.minimize(
            _objective,
            start / units,
            args=(surface, like, units),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": _ITERATIONS, "maxcor": 20},
        )
        start, before, height = np.asarray(optimum.x) * units, height, -float(optimum.fun)
        steep = np.abs(optimum.jac * (1 + np.abs(optimum.x))).max() > _STEEP * max(1.0, abs(height))
        if not steep or optimum.nit >= _ITERATIONS or not height > before:
            break
    return start, height, -optimum.jac / units


class CurvedModes(NamedTuple):
    """Modes, and the curvature at the highest one."""

    modes: Mode
    curvature: Tensor | None  # minus the Hessian (D, D); None if it is 0 or not finite
    proper: bool  # whether it is that of a mode: no eigenvalue is negative, or 0 beside the largest


def find_curved_modes(surface: Surface, theta: Tensor, units: Tensor | None = None) -> CurvedModes:
    """Return modes, and the curvature at the highest one.

    Where coordinates have very different units, as of unstandardised features, ascents stop far from a mode.
    They are then restarted from there in units of the curvature, 1 / sqrt(diag |H|).

    Args: see `find_modes`.
    """
    modes = find_modes(surface, theta, units)
    for scaling in range(_SCALINGS + 1):
        if not bool(modes.theta.isfinite().all()):
            return CurvedModes(modes, None, False)
        curvature = hessian(surface, modes.theta[modes.best].to(theta.dtype))
        if not bool(curvature.isfinite().all()) or not bool(curvature.abs().max() > 0):
            return CurvedModes(modes, None, False)
        below = below_mode(modes.gradient, curvature)
        if below < _NATS + _RELATIVE * abs(modes.height):
            is_proper = not (is_degenerate(curvature) and is_degenerate(standardised(curvature)))
            return CurvedModes(modes, curvature, is_proper)
        if scaling < _SCALINGS:
            modes = find_modes(surface, modes.theta, units_of(curvature))
    return CurvedModes(modes, curvature, not is_degenerate(curvature))


def without_absent(surface: Surface, found: CurvedModes) -> tuple[Surface, CurvedModes]:
    """Return a surface and its modes: those of all data if the given part has nothing of what decides on a coordinate.

    Such as a value of a category that no datum of the part has: the coordinate is flat there if its prior is, and the
    posterior would seem to be improper.
    """
    curvature, n = found.curvature, surface.target.n
    if found.proper or curvature is None or surface.size > _NEARLY_ALL * n:
        return surface, found
    diagonal = curvature.diagonal().abs()
    flat = diagonal <= _NOTHING * diagonal.max()
    if not bool(flat.any()) or 2.0 * len(curvature) ** 2 * n > _AFFORDABLE:
        return surface, found
    whole, mode = surface.of_all_data(), found.modes.theta[found.modes.best]
    points = torch.stack([mode, mode + flat.to(mode)])
    part, all_data = (each.value_and_grad(points)[1].cpu() for each in (surface, whole))
    changes, on_part = ((grad[1] - grad[0])[flat].abs().max() for grad in (all_data, part))
    if not float(changes) > _MORE * float(on_part):
        return surface, found
    return whole, find_curved_modes(whole, found.modes.theta)


class OnAllData(NamedTuple):
    """Where chains begin on all data, and the modes and curvature that are known."""

    theta: Tensor  # (C, D)
    surface: Surface
    found: CurvedModes  # of the surface


def on_all_data(surface: Surface, found: CurvedModes) -> OnAllData:
    """Return modes of a part of the data, moved to those of all data.

    By Newton steps, which take a pass over the data each. Where these, or gradients at two random points, show that the
    curvature is not that of all data modes and curvature are computed from all of them, if that takes no more than 3e10
    numbers. Such is a part that has hardly any of what is rare and matters, such as a value of a category, or a
    positive outcome.

    Args:
        surface: of the part; what is evaluated is added to its count.
        found: its modes, with the curvature at the highest one.
    """
    modes, n = found.modes.theta, surface.target.n
    assert found.curvature is not None
    if surface.size > _NEARLY_ALL * n:
        return OnAllData(modes, surface, found)
    error = math.sqrt(n / surface.size - 1)
    moved = _Moved(modes, True)
    if error > _OFF * math.sqrt(surface.temperature):
        moved = _by_newton_steps(surface, found, error)
    can_tell = found.proper and 2.0 * modes.shape[1] ** 2 * n <= _AFFORDABLE
    if can_tell and not (moved.fits and _has_curvature(surface, moved.theta[found.modes.best], found)):
        whole = surface.of_all_data()
        found_on_all = find_curved_modes(whole, modes, units_of(found.curvature))
        if found_on_all.proper:
            return OnAllData(found_on_all.modes.theta, whole, found_on_all)
    return OnAllData(moved.theta, surface, found)


def _has_curvature(surface: Surface, mode: Tensor, found: CurvedModes) -> bool:
    """Return whether gradients on all data near a mode (D,) change as the curvature H says: by -H times the distance.

    At random points, a standard deviation off in each direction at T = 1.
    """
    assert found.curvature is not None
    eigenvalues, vectors = spectrum(found.curvature, proper=found.proper)
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


def _by_newton_steps(surface: Surface, found: CurvedModes, error: float) -> _Moved:
    """Return modes of a part of the data, moved towards those of all data.

    The mode of a part is about sqrt(n / size - 1) standard deviations of the posterior at T = 1 off. Where that is more
    than half a standard deviation of the target, chains would begin in its tails, and a pilot would tune its step size
    there. A step s solves H s = g, with the curvature H of the part and the gradient g on all data. Modes that are the
    same but for this error are moved once.

    Args:
        surface: of the part; what is evaluated is added to its count.
        found: its modes, with the curvature at the highest one.
        error: of the mode of a part, in standard deviations.
    """
    modes, best, target = found.modes.theta, found.modes.best, surface.target
    assert found.curvature is not None
    fits = True
    eigenvalues, vectors = spectrum(found.curvature, proper=found.proper)
    # (D, D): |scaled x| is a distance in standard deviations at T = 1.
    scaled = (vectors * eigenvalues.sqrt()).T
    starts = modes.double().cpu().clone()
    offsets = (starts - starts[best]) @ scaled.T
    starts[offsets.norm(dim=1) < error] = starts[best].clone()
    points, indices = starts.unique(dim=0, return_inverse=True)
    temperature = torch.full((len(points),), surface.temperature, dtype=torch.float64, device=modes.device)
    before = math.inf
    for _ in range(_NEWTON):
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


def _objective(
    x: npt.NDArray[np.float64], surface: Surface, like: Tensor, units: npt.NDArray[np.float64]
) -> tuple[float, Any]:
    theta = torch.from_numpy(x * units)[None].to(device=like.device, dtype=like.dtype)
    value, grad = surface.value_and_grad(theta)
    if not bool(value.isfinite().all() and grad.isfinite().all()):
        return 1e300, np.zeros_like(x)
    return -float(value), -grad[0].cpu().numpy() * units
