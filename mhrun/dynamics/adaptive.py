"""The base class of optimisers that scale each coordinate by its squared gradients."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.parts import Dynamics
from mhrun.random import Draws
from mhrun.types import Controls


class Adaptive(Dynamics):
    """theta' = theta + rate m / (sqrt(v) + epsilon) with averages m of gradients and v of their squares.

    Gradients are those of the mean log-likelihood and the step size is rate / n.
    """

    optimises = True
    n: int
    epsilon: float

    def checked(self, n: int | None, epsilon: float, **decays: float) -> int:
        """Return the number of data n.

        Raises:
            Refusal: it is missing, or a setting is out of its range.
        """
        name = type(self).__name__
        if n is None:  # settings without data.n
            raise Refusal(f"{name} needs the number of data; add methods.NAME.kernel.dynamics.n=NUMBER.")
        if not (all(0 <= decay < 1 for decay in decays.values()) and epsilon > 0 and n >= 1):
            in_range = f", 0 <= {', '.join(decays)} < 1" if decays else ""
            raise Refusal(f"{name} needs n >= 1{in_range} and epsilon > 0.")
        return n

    @abstractmethod
    def averages(
        self, grad: Tensor, aux: dict[str, Tensor], draws: Draws
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return m and v (C, D) for the gradient of the mean log-likelihood, and the next aux."""

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return zero squares (C, D)."""
        return {"square": torch.zeros_like(theta)}

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta and averages (C, D)."""
        size, square, after = self.averages(grad / self.n, aux, draws)
        rate = self.n * controls.step_size[:, None]
        return theta + rate * size / (square.sqrt() + self.epsilon), after
