"""Each point on a minibatch of its own, which it keeps."""

from __future__ import annotations

from torch import Tensor

from mhrun.native import STORED, NativePairing
from mhrun.parts import Pairing
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Difference, Evaluation


class Stored(Pairing):
    """The proposed point gets a fresh minibatch of `m`; the current one keeps the one it came with.

    MINT's augmented chain (Li & Wong 2017, section 3.2) and MHBT (Wu, Wang & Wong 2020, Algorithm 1).
    One evaluation per datum. The chain on (theta, minibatch I) is exact for a density proportional to
    exp(c mean_I log p(x | theta)), c = n/T, so that theta follows its average over I,
    about exp(c mu + (c sigma)^2 (1 - (m-1)/(n-1)) / 2m) with mu and sigma^2 the mean and the variance
    over the data of log p(x | theta).
    """

    keeps_batch = True
    stationary = "stored"

    m: int

    def __init__(self, m: int) -> None:
        self.m = m

    def refuses(self, target: Target) -> str | None:
        """Return why a minibatch of m cannot be drawn, or None."""
        return target.refuses_batch(self.m)

    def reads(self, target: Target) -> int:
        """Return the minibatch, once."""
        return self.m

    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Score the first points on their first minibatches."""
        return target.evaluate(theta, target.batch(draws, self.m))

    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Return the origin as it was scored when it was proposed."""
        return target.with_gradient(kept, grad_temperature)

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

    def native(self) -> NativePairing:
        """Return the form of this pairing in a compiled loop."""
        return NativePairing(STORED, self.m)
