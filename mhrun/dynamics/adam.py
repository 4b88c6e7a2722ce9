"""Adam."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.parts import Dynamics
from mhrun.random import Draws
from mhrun.types import Controls


class Adam(Dynamics):
    """m' = a m + (1 - a) g, v' = b v + (1 - b) g^2, theta' = theta + rate M / (sqrt(V) + e).

    M = m' / (1 - a^t) and V = v' / (1 - b^t) at step t; Kingma & Ba (2015), Algorithm 1.
    g is the gradient of the mean log-likelihood and the step size is rate / n, so that `rate` has the usual meaning. An
    optimiser: the noise temperature is ignored.

    Args:
        n: number of data.
        first: a.
        second: b.
        epsilon: e.

    Raises:
        Refusal: an invalid setting.
    """

    optimises = True

    def __init__(
        self, n: int | None, first: float = 0.9, second: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        if n is None:  # settings without data.n
            raise Refusal("Adam needs the number of data; add methods.NAME.kernel.dynamics.n=NUMBER.")
        if not (0 <= first < 1 and 0 <= second < 1 and epsilon > 0 and n >= 1):
            raise Refusal("Adam needs n >= 1, 0 <= first, second < 1 and epsilon > 0.")
        self.n = n
        self.first = first
        self.second = second
        self.epsilon = epsilon

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return zero moments (C, D)."""
        return {"momentum": torch.zeros_like(theta), "square": torch.zeros_like(theta)}

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta and moments (C, D)."""
        mean = grad / self.n
        momentum = self.first * aux["momentum"] + (1 - self.first) * mean
        square = self.second * aux["square"] + (1 - self.second) * mean.square()
        size = momentum / draws.number(f"1 - {self.first}^t", lambda t: 1 - self.first**t)
        spread = (
            square / draws.number(f"1 - {self.second}^t", lambda t: 1 - self.second**t)
        ).sqrt() + self.epsilon
        rate = self.n * controls.step_size[:, None]
        return theta + rate * size / spread, {"momentum": momentum, "square": square}
