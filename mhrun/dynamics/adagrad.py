"""Adagrad."""

from __future__ import annotations

from torch import Tensor

from mhrun.dynamics.adaptive import Adaptive
from mhrun.random import Draws


class Adagrad(Adaptive):
    """v' = v + g^2,  theta' = theta + rate g / (sqrt(v') + epsilon)  (Duchi, Hazan & Singer 2011, diagonal).

    g is the gradient of the mean log-likelihood and the step size is rate / n, so that `rate` has the usual meaning. An
    optimiser: the noise temperature is ignored.

    Args:
        n: number of data.
        epsilon: prevents division by zero.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(self, n: int | None, epsilon: float = 1e-10) -> None:
        self.n = self.checked(n, epsilon)
        self.epsilon = epsilon

    def averages(
        self, grad: Tensor, aux: dict[str, Tensor], draws: Draws
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the gradient, the sums of squares (C, D), and the latter as aux."""
        square = aux["square"] + grad.square()
        return grad, square, {"square": square}
