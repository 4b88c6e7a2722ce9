"""Adam."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.dynamics.adaptive import Adaptive
from mhrun.random import Draws


class Adam(Adaptive):
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

    def __init__(
        self, n: int | None, first: float = 0.9, second: float = 0.999, epsilon: float = 1e-8
    ) -> None:
        self.n = self.checked(n, epsilon, first=first, second=second)
        self.first = first
        self.second = second
        self.epsilon = epsilon

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return zero moments (C, D)."""
        return {"momentum": torch.zeros_like(theta)} | super().start(theta, draws)

    def averages(
        self, grad: Tensor, aux: dict[str, Tensor], draws: Draws
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return both moments (C, D) without their bias towards zero, and those with it as aux."""
        momentum = self.first * aux["momentum"] + (1 - self.first) * grad
        square = self.second * aux["square"] + (1 - self.second) * grad.square()
        size = momentum / draws.number(f"1 - {self.first}^t", lambda t: 1 - self.first**t)
        spread = square / draws.number(f"1 - {self.second}^t", lambda t: 1 - self.second**t)
        return size, spread, {"momentum": momentum, "square": square}
