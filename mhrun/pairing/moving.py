"""Each point on a separate minibatch; the last candidate's minibatch passes to the current point."""

from __future__ import annotations

from torch import Tensor

from mhrun.numbers import whole_number
from mhrun.pairing.unpaired import Unpaired
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Evaluation


class Moving(Unpaired):
    """The candidate gets a fresh minibatch of `m`; the current point gets that of the last candidate, accepted or not.

    This follows the code of github.com/TYCODE-STANFORD/RSGLD (the "RSGLD code": Wu, Wang & Wong (2020) do not name it,
    but its account and its constants fit the paper). Algorithm 1 of the paper instead keeps the minibatch of a rejected
    move's origin (`mhrun.pairing.stored.Stored`). Two evaluations per datum. A favourable minibatch cannot freeze the
    chain. However, this is not a Metropolis-Hastings chain on points and minibatches, and its stationary distribution
    is unknown.
    """

    rescores = True
    hands_batch_on = True

    def __init__(self, m: int) -> None:
        self.m = whole_number("m", m)  # its stationary distribution is unknown: no pilot finds one

    def reads(self, target: Target) -> int:
        """Return 2 m."""
        return 2 * self.m

    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Return the starting points with a first minibatch, drawn as that of a previous candidate."""
        return target.prior(theta)._replace(batch=target.batches.draw(draws, self.m))

    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Evaluate the origin on the candidate's minibatch of the previous step."""
        assert kept.batch is not None
        return target.evaluate(kept.theta, kept.batch, grad_temperature)
