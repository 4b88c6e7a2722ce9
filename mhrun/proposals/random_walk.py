"""The Gaussian random walk."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mhrun.native import NativeProposal, piece
from mhrun.native.philox import PROPOSAL, fill_normals
from mhrun.parts import Proposal
from mhrun.random import Draws, Purpose
from mhrun.types import Controls, Evaluation


class RandomWalk(Proposal):
    """theta' = theta + step_size * z, z ~ N(0, I): `step_size` is the standard deviation per coordinate.

    It is symmetric: its densities cancel in the acceptance ratio.
    """

    best_acceptance = 0.234  # Roberts, Gelman & Gilks (1997)

    def sample(self, origin: Evaluation, controls: Controls, draws: Draws) -> Tensor:
        """Return the proposed points (C, D)."""
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1], dtype=origin.theta.dtype)
        return origin.theta + controls.step_size[:, None] * z

    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> None:
        """Return None: q(a -> b) = q(b -> a)."""
        return

    def native(self) -> NativeProposal:
        """Return the pieces of a compiled loop."""
        return NativeProposal((), _propose)


@piece
def _propose(args: Any, origin: Any, controls: Any, draw: Any, out: Any) -> None:
    fill_normals(out, PROPOSAL, draw)
    for d in range(len(origin)):
        out[d] = origin[d] + controls.step_size * out[d]
