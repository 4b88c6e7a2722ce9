"""The Langevin proposal."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from mhrun.native import NativeGradientProposal, native_form, piece
from mhrun.native.philox import PROPOSAL, fill_normals
from mhrun.native.vectors import gap_squares, log_ratio_sum, moved
from mhrun.parts import Proposal
from mhrun.random import Draws, Purpose
from mhrun.types import Controls, Evaluation


class LangevinProposal(Proposal):
    """theta' = theta + e g + sqrt(2 e tau) z: an SGLD step used as a proposal.

    e is the step size and tau the noise temperature of the controls. g is the gradient of the full-data log posterior
    at temperature 1, estimated on the minibatch of the point. If only the likelihood is tempered, the prior's part is
    multiplied by T (`PosteriorGradients`). The forward and the reverse density each use the gradient at their own
    point on that point's minibatch (Wu, Wang & Wong 2020, Algorithm 1 with eq. 5; Li & Wong 2017, section 4.3).

    Units: a learning rate on the mean log-likelihood corresponds to e = rate / n, and noise of variance 2 rate / n^2 to
    tau = 1 / n (`mhrun.units`). With tau = T, small steps are almost always accepted.

    Most efficient acceptance rate: 0.574 + 0.126 / D. On N(0, I) the mean has the largest effective sample size at 0.70
    for D = 1, 0.65 for D = 2 and 0.59 for D = 10; tuned to 0.574 at D = 1, it has 86 % of that.

    Args:
        ratio: whether the densities enter the acceptance ratio. Without them the test is not Metropolis-Hastings, and
            with small noise it performs stochastic gradient ascent.
    """

    gradients = True
    best_acceptance = 0.574  # Roberts & Rosenthal (1998)
    excess_acceptance = 0.126  # measured, see above

    def __init__(self, ratio: bool = True) -> None:
        self.ratio = self.keeps_balance = ratio

    def sample(self, origin: Evaluation, controls: Controls, draws: Draws) -> Tensor:
        """Return the proposed points (C, D)."""
        assert origin.grad is not None
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1], dtype=origin.theta.dtype)
        spread = (2 * controls.step_size * controls.noise_temperature).sqrt()
        return moved(origin.theta, origin.grad, z, controls.step_size, spread)

    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> Tensor | None:
        """Return log q(origin -> to) (C,), up to a constant common to both directions; None if `ratio` is False."""
        if not self.ratio:
            return None
        assert origin.grad is not None
        gap = gap_squares(to, origin.theta, origin.grad, controls.step_size)
        return -gap / (4 * controls.step_size * controls.noise_temperature).double()

    def log_density_ratio(
        self, origin: Evaluation, candidate: Evaluation, controls: Controls
    ) -> Tensor | None:
        """Return log q(candidate -> origin) - log q(origin -> candidate) (C,); None if `ratio` is False.

        With g and g' the gradients at theta and theta', it is the sum over the parameters of

            -(g + g') (theta' - theta + e (g' - g) / 2) / (2 tau),

        in which nothing large cancels, unlike in the difference of the two densities.
        """
        inherits_density = native_form(self, "log_density_ratio", "log_density") is not None
        if not (self.ratio and inherits_density):
            return super().log_density_ratio(origin, candidate, controls)
        assert origin.grad is not None
        assert candidate.grad is not None
        points = (origin.theta, candidate.theta, origin.grad, candidate.grad)
        return -log_ratio_sum(*points, controls.step_size) / (2 * controls.noise_temperature).double()

    def native(self) -> NativeGradientProposal | None:
        """Return the pieces of a compiled loop; None if `ratio` is False."""
        return NativeGradientProposal((), _propose, _log_ratio) if self.ratio else None


@piece
def _propose(args: Any, origin: Any, grad: Any, controls: Any, draw: Any, out: Any) -> None:
    fill_normals(out, PROPOSAL, draw)
    spread = np.sqrt(2 * controls.step_size * controls.noise_temperature)
    for d in range(len(origin)):
        out[d] = origin[d] + controls.step_size * grad[d] + spread * out[d]


@piece
def _log_ratio(args: Any, origin: Any, candidate: Any, here: Any, there: Any, controls: Any) -> Any:
    total, half = 0.0, 0.5 * controls.step_size
    for d in range(len(origin)):
        total += (here[d] + there[d]) * (candidate[d] - origin[d] + half * (there[d] - here[d]))
    return -total / (2 * controls.noise_temperature)
