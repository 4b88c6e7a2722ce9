"""What pairings share that leave the choice of data to the rule."""

from __future__ import annotations

from torch import Tensor

from mhrun.parts import Pairing
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Evaluation


class Deferred(Pairing):
    """A pairing that reads no data itself: the rule draws terms of the two points from what `compare` returns."""

    rescores = True

    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Return the evaluation with the log-prior only: earlier log-likelihoods are never used."""
        return target.prior(theta)

    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Return the stored evaluation."""
        return kept
