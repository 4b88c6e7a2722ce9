"""Both points on all data."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.native import FULL, NativePairing
from mhrun.parts import Pairing
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Difference, Evaluation


class Full(Pairing):
    """All n data; the current point's sum is cached, so a step needs n evaluations. Exact for the tempered target."""

    keeps_full_sums = True
    stationary = "tempered"

    def refuses(self, target: Target) -> str | None:
        """Return None: it is compatible with every target."""
        return None

    def reads(self, target: Target) -> int:
        """Return n: the candidate is evaluated, the current point is cached."""
        return target.n

    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Return the evaluation at the starting points."""
        return target.evaluate_full(theta)

    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Return the cached evaluation."""
        return target.gradients.added_to(kept, grad_temperature)

    def compare(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        draws: Draws,
        grad_temperature: Tensor | None = None,
    ) -> tuple[Evaluation, Difference]:
        """Evaluate the candidate on all data."""
        candidate = target.evaluate_full(theta, grad_temperature)
        exact = target.differences.unpaired(origin, candidate, target.n)
        return candidate, exact._replace(error=torch.zeros_like(exact.mean))

    def native(self) -> NativePairing:
        """Return the form of this pairing in a compiled loop."""
        return NativePairing(FULL, None)
