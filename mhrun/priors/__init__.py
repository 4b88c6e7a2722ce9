"""Priors of a method's own, beside the model's; one per file."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from mhrun.random import Draws
from mhrun.target import Target


class Prior(Protocol):
    """A log prior with a gradient, whose own parameters a kernel may let it resample."""

    def refuses(self, target: Target) -> str | None:
        """Return why it cannot be on this target, or None."""
        ...

    def start(self, target: Target, theta: Tensor) -> dict[str, Tensor]:
        """Return its parameters, name -> (C, ...)."""
        ...

    def resample(
        self, target: Target, theta: Tensor, aux: dict[str, Tensor], draws: Draws
    ) -> dict[str, Tensor]:
        """Return its parameters for this step."""
        ...

    def add_gradient(self, target: Target, theta: Tensor, grad: Tensor, aux: dict[str, Tensor]) -> Tensor:
        """Return grad (C, D), which may be changed in place, with the gradient of its log added."""
        ...
