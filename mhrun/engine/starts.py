"""Where chains begin, when it is not where the model has them begin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from mhrun.errors import UserError
from mhrun.models.parameters import Parameters
from mhrun.random import Draws, Purpose

Starts = Callable[[int, Draws], Tensor]
"""How many chains, and their random numbers -> starting points (C, D)."""


def starts_of(setting: Any, dim: int, where: str, named: Parameters | None = None) -> Starts | None:
    """Return the starts that a configuration asks for.

    Args:
        setting: a list of points, in the coordinates that the model's `names` name, dealt out to the chains in turn;
            ``{normal: sd}``, normal about 0 in every unconstrained coordinate; ``{uniform: [low, high]}`` likewise; or
            None.
        dim: D.
        where: in which place of the configuration it was said.
        named: the model's named parameters, if it has some.

    Raises:
        UserError: it is none of these.
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
        raise UserError(f"{where}.starts must be a list of points, each of {size} numbers.")
    if not points.isfinite().all():
        raise UserError(f"{where}.starts holds what is no finite number; chains cannot leave it.")
    if named is not None:
        points = named.theta(named.named(points), f"{where}.starts")
    return lambda chains, draws: points[torch.arange(chains) % len(points)]


def _drawn(setting: Mapping[str, Any], dim: int, where: str) -> Starts:
    match dict(setting):
        case {"normal": int() | float() as sd, **rest} if 0 < sd < math.inf and not rest:
            return lambda chains, draws: float(sd) * draws.normal(Purpose.INIT, dim)
        case {"uniform": [int() | float() as low, int() | float() as high], **rest} if (
            -math.inf < low < high < math.inf and not rest
        ):
            # The normal distribution function makes uniforms of normals.
            return lambda chains, draws: (
                low + float(high - low) * torch.special.ndtr(draws.normal(Purpose.INIT, dim))
            )
    raise UserError(
        f"{where}.starts = {dict(setting)} is unknown; say normal: SD, uniform: [LOW, HIGH], or a list of points."
    )
