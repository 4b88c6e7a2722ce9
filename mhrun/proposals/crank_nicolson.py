"""The preconditioned Crank-Nicolson proposal."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeProposal, piece
from mhrun.native.philox import PROPOSAL, fill_normals
from mhrun.parts import Proposal
from mhrun.random import Draws, Purpose
from mhrun.types import Controls, Evaluation


class CrankNicolson(Proposal):
    """theta' = sqrt(1 - b^2) theta + b s z, z ~ N(0, I): `step_size` is b, at most 1.

    The proposal is reversible for N(0, s^2 I). With this prior, untempered, its densities cancel against the prior's,
    and the acceptance ratio is that of the likelihood. The optimal step therefore does not decrease with the dimension
    (Neal 1999; Cotter et al. 2013, "MCMC methods for functions", section 4). In scaled coordinates with s = 1 it is
    reversible for the normal approximation of the posterior at its mode, which cancels likewise (Cornish et al. 2019).

    Args:
        prior_sd: s.

    Raises:
        Refusal: `prior_sd` is not positive.
    """

    best_acceptance = 0.234  # about that of a random walk, as Cotter et al. tune it
    largest_step = 1.0  # candidates that do not depend on the current point

    def __init__(self, prior_sd: float = 1.0) -> None:
        if not prior_sd > 0:
            raise Refusal(f"prior_sd = {prior_sd:g} must be positive.")
        self.prior_sd = prior_sd

    def sample(self, origin: Evaluation, controls: Controls, draws: Draws) -> Tensor:
        """Return the proposed points (C, D)."""
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1], dtype=origin.theta.dtype)
        b = controls.step_size.clamp_max(1.0)[:, None]
        return (1 - b * b).sqrt() * origin.theta + b * self.prior_sd * z

    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> Tensor:
        """Return log q(origin -> to) (C,), up to a term that is the same in both directions.

        q is reversible for the prior N(0, s^2 I), so that q(x -> y) / q(y -> x) = p(y) / p(x).
        """
        return -0.5 * (to.double() / self.prior_sd).square().sum(-1)

    def native(self) -> NativeProposal:
        """Return the pieces of a compiled loop."""
        return NativeProposal((self.prior_sd,), _propose, _log_ratio)


@piece
def _propose(args: Any, origin: Any, controls: Any, draw: Any, out: Any) -> None:
    b = min(controls.step_size, 1.0)
    keep, spread = math.sqrt(1 - b * b), b * args[0]
    fill_normals(out, PROPOSAL, draw)
    for d in range(len(origin)):
        out[d] = keep * origin[d] + spread * out[d]


@piece
def _log_ratio(args: Any, origin: Any, candidate: Any) -> Any:
    gain = 0.0
    for d in range(len(origin)):
        gain += candidate[d] * candidate[d] - origin[d] * origin[d]
    return 0.5 * gain / args[0] ** 2
