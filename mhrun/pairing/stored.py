"""Each point on a separate minibatch, which is stored with the point."""

from __future__ import annotations

from torch import Tensor

from mhrun.native import STORED, NativePairing
from mhrun.pairing.unpaired import Unpaired
from mhrun.parts import AUTO, checked_minibatch_size
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Evaluation


class Stored(Unpaired):
    """The candidate gets a fresh minibatch of `m`; the current point keeps the minibatch of its proposal.

    MINT's augmented chain (Li & Wong 2017, section 3.2) and MHBT (Wu, Wang & Wong 2020, Algorithm 1). One evaluation
    per datum. The stationary density of the chain on (theta, minibatch I) is proportional to
    exp(c mean_I log p(x | theta)), c = n/T. The marginal of theta is the average over I, approximately
    exp(c mu + (c sigma)^2 (1 - (m-1)/(n-1)) / 2m), where mu and sigma^2 are the mean and the variance of log p(x |
    theta) over the data.
    """

    keeps_batch = True
    stationary = "stored"

    def __init__(self, m: int | str) -> None:
        self.m = checked_minibatch_size(m)
        if m == AUTO:
            self.m_is_open = True

    def reads(self, target: Target) -> int:
        """Return m."""
        return self.m

    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Return the evaluation at the starting points, each on a first minibatch."""
        return target.evaluate(theta, target.batches.draw(draws, self.m))

    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Return the evaluation from when the point was proposed."""
        return target.gradients.added_to(kept, grad_temperature)

    def native(self) -> NativePairing:
        """Return the form of this pairing in a compiled loop."""
        return NativePairing(STORED, self.m)
