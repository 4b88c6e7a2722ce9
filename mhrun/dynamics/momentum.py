"""Stochastic gradient ascent, with momentum."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.parts import Dynamics
from mhrun.random import Draws, Purpose
from mhrun.types import Controls


class Momentum(Dynamics):
    """v' = a v + e g,  theta' = theta + v'  (Polyak 1964); SGD at a = 0.

    e is the step size and g the estimated gradient of the full-data log posterior. An optimiser: the noise temperature
    is ignored.

    Args:
        momentum: a.
        skip: probability that a chain skips a step. 0.5 imitates an acceptance test that accepts half of the moves
            regardless of their ratio (for comparison with RSGLD; Wu, Wang & Wong 2020).

    Raises:
        Refusal: an invalid setting.
    """

    optimises = True

    def __init__(self, momentum: float = 0.0, skip: float = 0.0) -> None:
        if not (0 <= momentum < 1 and 0 <= skip < 1):
            raise Refusal("Momentum needs 0 <= momentum < 1 and 0 <= skip < 1.")
        self.momentum = momentum
        self.skip = skip

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return zero momenta (C, D), or nothing without momentum."""
        return {"momentum": torch.zeros_like(theta)} if self.momentum else {}

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta and momenta (C, D)."""
        move = controls.step_size[:, None] * grad
        if self.momentum:
            move += self.momentum * aux["momentum"]
        new = {"momentum": move} if self.momentum else {}
        if self.skip:
            sits = (draws.uniform(Purpose.NOISE) < self.skip)[:, None]
            new = {name: torch.where(sits, aux[name], value) for name, value in new.items()}
            move = torch.where(sits, 0.0, move)
        return theta + move, aux | new
