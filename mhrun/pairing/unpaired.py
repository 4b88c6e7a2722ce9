"""Base of pairings whose two points are evaluated on independent minibatches."""

from __future__ import annotations

from torch import Tensor

from mhrun.parts import Pairing
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Difference, Evaluation


class Unpaired(Pairing):
    """A pairing that evaluates the candidate on a fresh minibatch of `m`, independent of the origin's."""

    m: int

    def refuses(self, target: Target) -> str | None:
        """Return why a minibatch of m cannot be drawn, or that the target's surrogate is of no use, or None."""
        return target.batches.refuses(self.m, is_open=self.m_is_open) or target.refuses_surrogate(
            type(self).__name__
        )

    def compare(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        draws: Draws,
        grad_temperature: Tensor | None = None,
    ) -> tuple[Evaluation, Difference]:
        """Evaluate the candidate on a fresh minibatch, independent of the origin's."""
        candidate = target.evaluate(theta, target.batches.draw(draws, self.m), grad_temperature)
        return candidate, target.differences.unpaired(origin, candidate, self.m)
