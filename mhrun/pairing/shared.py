"""Both points on one fresh minibatch."""

from __future__ import annotations

from torch import Tensor

from mhrun.native import SHARED, NativePairing
from mhrun.pairing.rescoring import Rescoring
from mhrun.parts import AUTO, checked_minibatch_size
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Difference, Evaluation


class Shared(Rescoring):
    """A fresh minibatch of `m` at each step, shared by the current point and the candidate.

    MINT as printed (Li & Wong 2017, Algorithm 1). Two evaluations per datum. With a Metropolis rule the stationary
    distribution has no closed form; the minibatch noise of the log-ratio makes it slightly flatter than the tempered
    target.
    """

    m: int

    def __init__(self, m: int | str) -> None:
        self.m = checked_minibatch_size(m)
        if m == AUTO:
            self.m_is_open = True

    def refuses(self, target: Target) -> str | None:
        """Return why a minibatch of m cannot be drawn, or None."""
        return target.batches.refuses(self.m, is_open=self.m_is_open)

    def reads(self, target: Target) -> int:
        """Return 2 m."""
        return 2 * self.m

    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Return the origin with this step's minibatch, evaluated on it if a gradient is needed."""
        index = target.batches.draw(draws, self.m)
        if grad_temperature is None:
            return kept._replace(batch=index)
        return target.evaluate(kept.theta, index, grad_temperature, with_moments=False)

    def compare(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        draws: Draws,
        grad_temperature: Tensor | None = None,
    ) -> tuple[Evaluation, Difference]:
        """Evaluate both points on the origin's minibatch."""
        assert origin.batch is not None
        if grad_temperature is None:
            return target.prior(theta), target.differences.between(origin.theta, theta, origin.batch)
        candidate = target.evaluate(theta, origin.batch, grad_temperature, origin.rows, with_moments=False)
        return candidate, target.differences.paired(origin, candidate)

    def native(self) -> NativePairing:
        """Return the form of this pairing in a compiled loop."""
        return NativePairing(SHARED, self.m)
