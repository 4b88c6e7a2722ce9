"""Adagrad."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.parts import Dynamics
from mhrun.random import Draws
from mhrun.types import Controls


class Adagrad(Dynamics):
    """v' = v + g^2,  theta' = theta + rate g / (sqrt(v') + epsilon)  (Duchi, Hazan & Singer 2011, diagonal).

    g is the gradient of the mean log-likelihood and the step size is rate / n, so that `rate` has the usual meaning. An
    optimiser: the noise temperature is ignored.

    Args:
        n: number of data.
        epsilon: prevents division by zero.

    Raises:
        Refusal: an invalid setting.
    """

    optimises = True

    def __init__(self, n: int | None, epsilon: float = 1e-10) -> None:
        if n is None:  # settings without data.n
            raise Refusal("Adagrad needs the number of data; add methods.NAME.kernel.dynamics.n=NUMBER.")
        if not (epsilon > 0 and n >= 1):
            raise Refusal("Adagrad needs n >= 1 and epsilon > 0.")
        self.n = n
        self.epsilon = epsilon

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return zero sums of squares (C, D)."""
        return {"square": torch.zeros_like(theta)}

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta and sums of squares (C, D)."""
        mean = grad / self.n
        square = aux["square"] + mean.square()
        rate = self.n * controls.step_size[:, None]
        return theta + rate * mean / (square.sqrt() + self.epsilon), {"square": square}
