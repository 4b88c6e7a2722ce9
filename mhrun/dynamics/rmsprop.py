"""RMSprop."""

from __future__ import annotations

from torch import Tensor

from mhrun.dynamics.adaptive import Adaptive
from mhrun.random import Draws


class RMSprop(Adaptive):
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

    def __init__(self, n: int | None, smoothing: float = 0.9, epsilon: float = 1e-8) -> None:
        self.n = self.checked(n, epsilon, smoothing=smoothing)
        self.smoothing = smoothing
        self.epsilon = epsilon

    def averages(
        self, grad: Tensor, aux: dict[str, Tensor], draws: Draws
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the gradient, the mean squares (C, D), and the latter as aux."""
        square = self.smoothing * aux["square"] + (1 - self.smoothing) * grad.square()
        return grad, square, {"square": square}
