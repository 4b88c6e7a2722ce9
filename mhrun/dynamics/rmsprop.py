"""RMSprop."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.parts import Dynamics
from mhrun.random import Draws
from mhrun.types import Controls


class RMSprop(Dynamics):
    """v' = a v + (1 - a) g^2,  theta' = theta + rate g / (sqrt(v') + epsilon)  (Tieleman & Hinton 2012).

    g is the gradient of the mean log-likelihood and the step size is rate / n, so that `rate` has the usual meaning. An
    optimiser: the noise temperature is ignored.

    Args:
        n: number of data.
        smoothing: a.
        epsilon: prevents division by zero.

    Raises:
        Refusal: an invalid setting.
    """

    optimises = True

    def __init__(self, n: int | None, smoothing: float = 0.9, epsilon: float = 1e-8) -> None:
        if n is None:  # settings without data.n
            raise Refusal("RMSprop needs the number of data; add methods.NAME.kernel.dynamics.n=NUMBER.")
        if not (0 <= smoothing < 1 and epsilon > 0 and n >= 1):
            raise Refusal("RMSprop needs n >= 1, 0 <= smoothing < 1 and epsilon > 0.")
        self.n = n
        self.smoothing = smoothing
        self.epsilon = epsilon

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return zero mean squares (C, D)."""
        return {"square": torch.zeros_like(theta)}

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta and mean squares (C, D)."""
        mean = grad / self.n
        square = self.smoothing * aux["square"] + (1 - self.smoothing) * mean.square()
        rate = self.n * controls.step_size[:, None]
        return theta + rate * mean / (square.sqrt() + self.epsilon), {"square": square}
