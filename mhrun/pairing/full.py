"""Both points on all data."""

from __future__ import annotations

from torch import Tensor

from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Difference, Evaluation


class Full:
    """All n data, with the current point's sum kept: n evaluations a step. Exact for the tempered target."""

    name = "full"
    m = None

    def refuses(self, target: Target) -> str | None:
        """Refuse nothing."""
        return None

    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Score the first points."""
        return target.evaluate_full(theta)

    def current(self, target: Target, kept: Evaluation, draws: Draws) -> Evaluation:
        """Return the origin with the sum it has."""
        return kept

    def compare(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        draws: Draws,
    ) -> tuple[Evaluation, Difference]:
        """Score the candidate on all data."""
        candidate = target.evaluate_full(theta)
        assert candidate.log_lik_mean is not None
        assert candidate.log_lik_var is not None
        assert origin.log_lik_mean is not None
        return candidate, Difference(
            candidate.log_lik_mean - origin.log_lik_mean, candidate.log_lik_var, target.n
        )
