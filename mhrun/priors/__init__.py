"""Additional priors of a method, applied on top of the model's; one per file."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mhrun.random import Draws
from mhrun.target import Target


class Prior(Protocol):
    """A log-prior with a gradient; a kernel may let it resample its hyperparameters."""

    def refuses(self, target: Target) -> str | None:
        """Return why it cannot be used with this target, or None."""
        ...

    def start(self, target: Target, theta: Tensor) -> dict[str, Tensor]:
        """Return the initial hyperparameters, name -> (C, ...)."""
        ...

    def resample(
        self, target: Target, theta: Tensor, aux: dict[str, Tensor], draws: Draws
    ) -> dict[str, Tensor]:
        """Return the hyperparameters for this step."""
        ...

    def add_gradient(self, target: Target, theta: Tensor, grad: Tensor, aux: dict[str, Tensor]) -> Tensor:
        """Return grad (C, D) plus the gradient of the log-prior; may modify grad in place."""
        ...
