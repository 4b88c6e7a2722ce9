"""Base of pairings that evaluate both points anew at each step."""

from __future__ import annotations

from torch import Tensor

from mhrun.parts import Pairing
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Evaluation


class Rescoring(Pairing):
    """A pairing that keeps no log-likelihood: each step evaluates both points on its own data."""

    rescores = True

    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Return the evaluation with the log-prior only: earlier log-likelihoods are never used."""
        return target.prior(theta)
