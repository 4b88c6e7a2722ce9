"""Modes of the posterior, and the curvature at the highest one, for pilots.

They are those of a part of the data at first; `mhrun.engine.landscape.all_data` compares it with all data. A surrogate
finds its own mode (`mhrun.target.reference`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # which imports its subpackages on first use
import torch
from torch import Tensor

from mhrun.engine.landscape.curvature import below_mode, hessian, is_degenerate, standardised, units_of
from mhrun.engine.landscape.surface import Surface

_MODES = 8  # chains that an ascent begins from
_ITERATIONS = 200
# L-BFGS is restarted, without its memory of earlier gradients, where the gradient times 1 + |theta| is above this share
# of the height: below a steep wall, as exp makes, it takes a small relative change for convergence.
_STEEP, _ASCENTS = 1e-2, 10
_LOST = 1e3  # nats per datum below the highest end, at which an ascent has not left its wall
_SCALINGS = 2  # restarts of ascents in coordinates scaled by the curvature
# The curvature along a saddle's direction, minus, at least; and how far beside it ascents begin, in units of it
_SADDLE, _ASIDE = 1e-3, 0.3
# How far below its mode, as a quadratic, an end is at most; and as a share of its height
_NATS, _RELATIVE = 0.05, 1e-8


class Mode(NamedTuple):
    """Modes of a surface."""

    theta: Tensor  # (C, D), where each chain's ascent ended; of many chains they are shared
    best: int  # the chain with the highest one
    height: float  # there
    gradient: Tensor  # (D,) there, float64
    # Where each of the ascents ended, of which chain c has the one numbered c mod their number
    heights: list[float]


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
    They are then restarted from there in units of the curvature, 1 / sqrt(diag |H|). Ascents that end at a saddle, as
    from a point between two modes, are restarted from both sides of it.

    Args: see `find_modes`.
    """
    found = _curved_modes(surface, theta, units)
    if found.proper or found.curvature is None or not bool(found.curvature.isfinite().all()):
        return found
    points = _beside_saddle(found.modes, found.curvature)
    if points is None:
        return found
    beside = _curved_modes(surface, points.to(theta), units_of(found.curvature))
    return beside if beside.proper else found


def _curved_modes(surface: Surface, theta: Tensor, units: Tensor | None) -> CurvedModes:
    """Return modes, and the curvature at the highest one, see `find_curved_modes`; it may be a saddle."""
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


def _beside_saddle(modes: Mode, curvature: Tensor) -> Tensor | None:
    """Return where chains are (C, D), those at the highest end on both sides of it in turn; None if it is no saddle.

    A saddle has a direction, in units of the curvature, along which the density rises on both sides.
    """
    values, vectors = torch.linalg.eigh(standardised(curvature))
    if not float(values[0]) < -_SADDLE:
        return None
    units, ends = units_of(curvature), modes.theta.double().cpu()
    at_saddle = ((ends - ends[modes.best]) / units).norm(dim=1) < 1
    sides = torch.where(at_saddle, 1.0 - 2.0 * (torch.arange(len(ends)) % 2), 0.0)
    return ends + _ASIDE * sides[:, None] * (units * vectors[:, 0])


def _objective(
    x: npt.NDArray[np.float64], surface: Surface, like: Tensor, units: npt.NDArray[np.float64]
) -> tuple[float, Any]:
    theta = torch.from_numpy(x * units)[None].to(device=like.device, dtype=like.dtype)
    value, grad = surface.value_and_grad(theta)
    if not bool(value.isfinite().all() and grad.isfinite().all()):
        return 1e300, np.zeros_like(x)
    return -float(value), -grad[0].cpu().numpy() * units
