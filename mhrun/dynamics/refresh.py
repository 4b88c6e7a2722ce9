"""Momenta drawn anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import piece
from mhrun.native.philox import NOISE, USE, fill_normals
from mhrun.random import Draws, Purpose

_USE = 3  # the `use` of Purpose.NOISE; a prior may draw with other uses in the same step
_FRESH = NOISE + np.uint64(_USE) * USE


def checked(every: int | None) -> int:
    """Return the steps between two refreshments, 0 for none.

    Raises:
        Refusal: a number below 1.
    """
    if every is not None and (every < 1 or every != int(every)):
        raise Refusal(f"refresh = {every} must be a number of steps, at least 1, or null.")
    return int(every or 0)


def refreshed(momentum: Tensor, variance: Tensor, every: int, draws: Draws) -> Tensor:
    """Return momenta (C, D), redrawn from N(0, variance (C,)) at steps 1, 1 + every, ... where the variance is > 0."""
    if not draws.due(every):
        return momentum
    z = draws.normal(Purpose.NOISE, momentum.shape[1], use=_USE, dtype=momentum.dtype)
    return torch.where((variance > 0)[:, None], variance.sqrt()[:, None] * z, momentum)


def temperature_of_theta(friction: float, noise: float, every: int) -> float:
    """Return the variance of theta over the right one in the limit of small steps, with momenta drawn anew.

    Of v' = (1 - s) v + e g + N(0, 2 a e T), theta' = theta + v', with momenta from N(0, e T) every K steps. Such
    momenta get whole kicks from the first step on, where half of the first would be right. It is

        ((1 - s)^2 b_K^2 + 2 a sum_r b_r^2) / (2 sum_r b_r),  b_r = 1 + ... + (1 - s)^(r - 1),  r = 1, ..., K,

    the variance of the displacement in K steps over twice the drift: about 1 - 1/K if K s is small. Without new momenta
    it is a / s.

    Args:
        friction: s, the friction that acts: SGHMC's own, or where a thermostat settles.
        noise: a, of which the noise is made.
        every: K; 0: momenta are never drawn anew.
    """
    if not every:
        return noise / friction
    sums = (1 - (1 - friction) ** np.arange(1, every + 1)) / friction
    fresh = (1 - friction) * sums[-1]
    return float((fresh**2 + 2 * noise * np.square(sums).sum()) / (2 * sums.sum()))


@piece
def is_due(every: Any, draw: Any) -> bool:
    """Return whether momenta are redrawn at this step: 1, 1 + every, ...; never if `every` is 0."""
    return every > 0 and (draw.step - np.uint64(1)) % np.uint64(every) == 0


@piece
def refresh(momentum: Any, sd: Any, every: Any, draw: Any) -> None:
    """Redraw momenta (D,) from N(0, sd^2), in place, at the steps where they are due."""
    if sd > 0 and is_due(every, draw):
        fill_normals(momentum, _FRESH, draw)
        scale = momentum.dtype.type(sd)
        for d in range(len(momentum)):
            momentum[d] *= scale
