"""Directions in which a log posterior does not fall off, so that it may have no finite integral."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from mhrun.engine.landscape.modes import find_modes
from mhrun.engine.landscape.surface import Surface

# How far from the mode it is evaluated, in units of the larger of 1 and the mode's distance from 0
_RAY_DISTANCE = 1e5
_MIN_RAY_SDS = 1e3  # and at least so many standard deviations, where the curvature gives one
_FLAT = 1e-8  # share of the largest eigenvalue of a curvature, below which a direction may be flat
_MAX_FALL = 3.0  # what it falls at most, at temperature 1; a Cauchy prior falls by 23
_TRIED = 2  # flat directions of the curvature that are followed
_AXES = 20  # coordinates that are tried where nothing has a curvature
_NAMED, _SHOWN = 3, 0.01  # coordinates of a direction that are named, and the least that is


def flat_direction(
    surface: Surface, mode: Tensor, curvature: Tensor | None, *, proper: bool
) -> Tensor | None:
    """Return a unit vector (D,) along which the log posterior does not fall off, or None if none is found.

    It is evaluated far out on the ray from the origin through the mode, as where a plane separates classes. At a mode
    that is not proper, points far out in directions without curvature are followed by ascents to the nearest ridge. If
    one ends far from the mode and as high, the ridge does not end, as where only a sum of parameters is determined.

    Nothing is found where the model cannot be evaluated.

    Args:
        surface: the log posterior.
        mode: an end of an ascent (D,).
        curvature: minus the Hessian there (D, D); None if it is 0 or not finite.
        proper: whether that is a proper mode, see `mhrun.engine.landscape.curvature.spectrum`.
    """
    mode = mode.double().cpu()
    height = _height(surface, mode)
    for direction, follows in _directions(mode, curvature, proper=proper):
        far = _RAY_DISTANCE * max(1.0, float(mode.norm()))
        if curvature is not None and not follows:
            bend = float(direction @ curvature.double() @ direction)
            far = max(far, _MIN_RAY_SDS * bend**-0.5) if bend > _FLAT * float(curvature.abs().max()) else far
        end = mode + far * direction
        # A model need not be defined so far out, and a class of the user's may raise any exception there.
        with suppress(Exception):
            if follows:
                end = find_modes(surface, end[None].to(surface.target.device)).theta[0].double().cpu()
            move = end - mode
            if float(move.norm()) > far / 2 and height - _height(surface, end) < _MAX_FALL:
                return move / move.norm()
    return None


def _directions(mode: Tensor, curvature: Tensor | None, *, proper: bool) -> list[tuple[Tensor, bool]]:
    """Return directions to try, and whether an ascent follows them: the ray's exact, those of a curvature are not."""
    directions = [(mode / mode.norm(), False)] if float(mode.norm()) > 0 else []
    if curvature is None:
        axes = torch.eye(len(mode), dtype=torch.float64)[:_AXES]
        return directions + [(sign * axis, False) for axis in axes for sign in (1.0, -1.0)]
    if not proper:
        values, vectors = torch.linalg.eigh(curvature.double())
        flat = vectors.T[values.abs() <= _FLAT * values.abs().max()][:_TRIED]
        directions += [(sign * vector, True) for vector in flat for sign in (1.0, -1.0)]
    return directions


def _height(surface: Surface, point: Tensor) -> float:
    """Return the log posterior at a point (D,); -infinity where it is not finite."""
    height = float(surface.value_and_grad(point[None].to(surface.target.device))[0])
    return height if math.isfinite(height) else -math.inf


def direction_in_words(direction: Tensor, names: Sequence[str]) -> str:
    """Return a direction (D,) as a sum of its largest coordinates, such as ``0.71 a - 0.71 b``; of one, its name."""
    places = [int(d) for d in direction.abs().argsort(descending=True) if float(direction[d].abs()) > _SHOWN]
    if len(places) == 1:
        return names[places[0]]
    terms = [f"{float(direction[d]):+.2g} {names[d]}" for d in places[:_NAMED]]
    words = " ".join([terms[0].removeprefix("+"), *(f"{term[0]} {term[1:]}" for term in terms[1:])])
    rest = len(places) - len(terms)
    return words + (f" and {rest} smaller one{'s' * (rest > 1)}" if rest > 0 else "")
