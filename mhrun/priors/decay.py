"""Weight decay."""

from __future__ import annotations

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import blocks_of


class Decay:
    """log p(theta) = -(n decay / 2) |weights|^2: L2 regularisation of the mean loss by `decay`, for weights only.

    Raises:
        Refusal: a negative decay.
    """

    def __init__(self, decay: float) -> None:
        if not decay >= 0:
            raise Refusal(f"decay = {decay:g} must be at least 0.")
        self.decay = decay

    def refuses(self, target: Target) -> str | None:
        """Return why the target is incompatible, or None: the model must declare its blocks of weights."""
        return None if blocks_of(target.model) else "weight decay needs a model with blocks of weights."

    def start(self, target: Target, theta: Tensor) -> dict[str, Tensor]:
        """Return an empty dictionary: there are no hyperparameters."""
        return {}

    def resample(
        self, target: Target, theta: Tensor, aux: dict[str, Tensor], draws: Draws
    ) -> dict[str, Tensor]:
        """Return nothing."""
        return aux

    def add_gradient(self, target: Target, theta: Tensor, grad: Tensor, aux: dict[str, Tensor]) -> Tensor:
        """Add -n decay weights."""
        for block in blocks_of(target.model):
            if block.weights:
                place = slice(block.start, block.stop)
                grad[:, place].sub_(theta[:, place], alpha=target.n * self.decay)
        return grad
