"""Starting points other than the model's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mhrun.errors import UserError
from mhrun.models.parameters import Parameters
from mhrun.numbers import is_number
from mhrun.random import Draws, Purpose

Starts = Callable[[int, Draws], Tensor]
"""(number of chains, random numbers) -> starting points (C, D)."""


def starts_of(setting: Any, dim: int, where: str, named: Parameters | None = None) -> Starts | None:
    """Return the starting points of a configuration.

    Args:
        setting: a list of points, in the coordinates of the model's `names`, assigned to the chains in turn; ``{normal:
            sd}``, normal about 0 in every unconstrained coordinate; ``{uniform: [low, high]}`` likewise; or None.
        dim: D.
        where: what messages call it, such as its path in the configuration.
        named: the model's named parameters, if it has some.

    Raises:
        UserError: an invalid setting.
    """
    if setting is None:
        return None
    if isinstance(setting, Mapping):
        return _drawn(setting, dim, where)
    size = dim if named is None else named.size
    try:
        points = torch.as_tensor(setting, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        points = torch.empty(0)
    if points.dim() != 2 or points.shape[1] != size:
        raise UserError(f"{where} must be a list of points, each of {size} numbers.")
    if not points.isfinite().all():
        raise UserError(f"{where} holds a number that is not finite.")
    if named is not None:
        points = named.theta(named.named(points), where)
    return lambda chains, draws: points[torch.arange(chains) % len(points)]


def _drawn(setting: Mapping[str, Any], dim: int, where: str) -> Starts:
    match dict(setting):
        case {"normal": sd, **rest} if is_number(sd) and 0 < sd < math.inf and not rest:
            return lambda chains, draws: float(sd) * draws.normal(Purpose.INIT, dim)
        case {"uniform": [low, high], **rest} if (
            is_number(low) and is_number(high) and -math.inf < low < high < math.inf and not rest
        ):
            # The normal distribution function maps normals to uniforms.
            return lambda chains, draws: (
                low + float(high - low) * torch.special.ndtr(draws.normal(Purpose.INIT, dim))
            )
    raise UserError(
        f"{where} = {dict(setting)} is unknown; give normal: SD, uniform: [LOW, HIGH], or a list of points."
    )
