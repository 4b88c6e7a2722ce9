"""A Langevin move as a proposal."""

from __future__ import annotations

from torch import Tensor

from mhrun.native.vectors import gap_squares, moved
from mhrun.parts import Proposal
from mhrun.random import Draws, Purpose
from mhrun.types import Controls, Evaluation


class LangevinProposal(Proposal):
    """theta' = theta + e g + sqrt(2 e tau) z: a step of SGLD, to be accepted or not.

    g is the gradient of the log posterior of all data (at temperature 1), estimated on the minibatch that the point is
    scored on; where the likelihood alone is tempered, the prior's part is multiplied by T (`mhrun.Target.gradient`).
    e is the step size and tau the noise temperature of the controls. Forward and reverse density each have
    the gradient of their own point on its own minibatch (Wu, Wang & Wong 2020, Algorithm 1 with eq. 5; Li & Wong
    2017, section 4.3). A paper's learning rate on the mean log-likelihood is e = rate / n, and its noise of variance
    2 rate / n^2 has tau = 1 / n (`mhrun.units`); tau = T makes moves that a small step all but always accepts.

    Args:
        ratio: whether the densities enter the acceptance; without them the test is none of Metropolis-Hastings, and
            small noise makes it stochastic gradient ascent.
    """

    gradients = True

    def __init__(self, ratio: bool = True) -> None:
        self.ratio = ratio

    def sample(self, origin: Evaluation, controls: Controls, draws: Draws) -> Tensor:
        """Return the proposed points (C, D)."""
        assert origin.grad is not None
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1], dtype=origin.theta.dtype)
        spread = (2 * controls.step_size * controls.noise_temperature).sqrt()
        return moved(origin.theta, origin.grad, z, controls.step_size, spread)

    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> Tensor | None:
        """Return log q(origin -> to) (C,), without the constant that both directions share; None if left out."""
        if not self.ratio:
            return None
        assert origin.grad is not None
        gap = gap_squares(to, origin.theta, origin.grad, controls.step_size)
        return -gap / (4 * controls.step_size * controls.noise_temperature).double()
