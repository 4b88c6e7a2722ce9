"""Each point on a fresh minibatch, where the last candidate's moves on to the current point."""

from __future__ import annotations

from torch import Tensor

from mhrun.parts import Pairing
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Difference, Evaluation


class Moving(Pairing):
    """The proposed point gets a fresh minibatch of `m`; the current one that of the last proposal, accepted or not.

    As the code of github.com/TYCODE-STANFORD/RSGLD has it (the "RSGLD code": Wu, Wang & Wong (2020) do not name it, but
    its account and its constants fit the paper), where Algorithm 1 of the paper keeps the minibatch of a point that
    stays (`mhrun.pairing.stored.Stored`). Two evaluations per datum. The noise of a lucky minibatch cannot
    freeze the chain; but it is no Metropolis-Hastings chain on points and minibatches, and no distribution is known
    that it has.
    """

    rescores = True
    hands_batch_on = True

    m: int

    def __init__(self, m: int) -> None:
        self.m = m

    def refuses(self, target: Target) -> str | None:
        """Return why a minibatch of m cannot be drawn, or None."""
        return target.refuses_batch(self.m)

    def reads(self, target: Target) -> int:
        """Return the minibatch, twice."""
        return 2 * self.m

    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Return the points with a first minibatch, that of a proposal before the first."""
        return target.prior(theta)._replace(batch=target.batch(draws, self.m))

    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Score the origin on the minibatch of the step before."""
        assert kept.batch is not None
        return target.evaluate(kept.theta, kept.batch, grad_temperature)

    def compare(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        draws: Draws,
        grad_temperature: Tensor | None = None,
    ) -> tuple[Evaluation, Difference]:
        """Score the candidate on a fresh minibatch, independent of the origin's."""
        candidate = target.evaluate(theta, target.batch(draws, self.m), grad_temperature)
        return candidate, target.gap(origin, candidate, self.m)
