"""Directions in which a log posterior does not fall off, so that it may have no finite integral."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mhrun.engine.pilot.modes import find_modes
from mhrun.engine.pilot.surface import Surface

_FAR = (
    1e5  # how far from the mode it is evaluated, in units of the larger of 1 and the mode's distance from 0
)
_FLAT = 1e-8  # share of the largest eigenvalue of a curvature, below which a direction may be flat
_NATS = 3.0  # what it falls at most, at temperature 1; a Cauchy prior falls by 23
_TRIED = 2  # flat directions of the curvature that are followed
_NAMED, _SHOWN = 3, 0.01  # coordinates of a direction that are named, and the least that is


def flat_direction(
    surface: Surface, mode: Tensor, curvature: Tensor | None, *, proper: bool
) -> Tensor | None:
    """Return a unit vector (D,) along which the log posterior does not fall off, or None if none is found.

    It is evaluated far out on the ray from the origin through the mode, as where a plane separates classes. At a mode
    that is not proper, points far out in directions without curvature are followed by ascents to the nearest ridge. If
    one ends far from the mode and as high, the ridge does not end, as where only a sum of parameters is determined.

    Args:
        surface: the log posterior.
        mode: an end of an ascent (D,).
        curvature: minus the Hessian there (D, D); None if it is 0 or not finite.
        proper: whether that is a proper mode, see `mhrun.engine.pilot.curvature.spectrum`.
    """
    mode = mode.double().cpu()
    far = _FAR * max(1.0, float(mode.norm()))
    like = mode.to(surface.target.device)
    ends = [mode * (1 + far / float(mode.norm()))] if float(mode.norm()) > 0 else []
    if curvature is not None and not proper:
        values, vectors = torch.linalg.eigh(curvature)
        flat = vectors.T[values.abs() <= _FLAT * values.abs().max()][:_TRIED]
        ends += (
            list(find_modes(surface, (mode + far * flat).to(like)).theta.double().cpu()) if len(flat) else []
        )
    if not ends:
        return None
    heights = surface.value_and_grad(torch.stack([mode, *ends]).to(like))[0].cpu()
    for end, height in zip(ends, heights[1:], strict=True):
        move = end - mode
        if float(move.norm()) > far / 2 and abs(float(height - heights[0])) < _NATS:
            return move / move.norm()
    return None


def direction_in_words(direction: Tensor, names: Sequence[str]) -> str:
    """Return a direction (D,) as a sum of its largest coordinates, such as ``0.71 a - 0.71 b``."""
    places = [int(d) for d in direction.abs().argsort(descending=True) if float(direction[d].abs()) > _SHOWN]
    terms = [f"{float(direction[d]):+.2g} {names[d]}" for d in places[:_NAMED]]
    words = " ".join([terms[0].removeprefix("+"), *(f"{term[0]} {term[1:]}" for term in terms[1:])])
    rest = len(places) - len(terms)
    return words + (f" and {rest} smaller ones" if rest > 0 else "")
