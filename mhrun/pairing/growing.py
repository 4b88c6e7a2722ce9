"""Both points on one fresh minibatch, grown as the rule requires."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.native import GROWING, NativePairing
from mhrun.pairing.rescoring import Rescoring
from mhrun.parts import SUPPLY
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Evaluation


class Growing(Rescoring):
    """A fresh minibatch at each step, shared by both points, which the rule extends until it can decide.

    Used by the adaptive tests (Korattikara et al. 2014, Bardenet et al. 2014, Seita et al. 2017). Two evaluations per
    datum.
    """

    offers = SUPPLY

    def refuses(self, target: Target) -> str | None:
        """Return why the target is incompatible, or None: with replacement, a test could never have read all data."""
        if target.replacement:
            return "a growing minibatch is drawn without replacement: replacement=false."
        return None

    def reads(self, target: Target) -> int:
        """Return a guess; the tests read between hundreds and tens of thousands of data."""
        return min(target.n, 10_000)

    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Return the stored evaluation."""
        return kept

    def compare(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        draws: Draws,
        grad_temperature: Tensor | None = None,
    ) -> tuple[Evaluation, Terms]:
        """Return the candidate and a supply of terms."""
        return target.prior(theta), Terms(target, origin.theta, theta, draws)

    def native(self) -> NativePairing:
        """Return the form of this pairing in a compiled loop."""
        return NativePairing(GROWING, None)


class Terms:
    """See `mhrun.types.Supply`."""

    def __init__(self, target: Target, origin: Tensor, candidate: Tensor, draws: Draws) -> None:
        self.n = target.n
        self.known = target.differences.known(origin, candidate)
        self.n_lik_overhead = torch.zeros(len(origin), dtype=torch.int64, device=origin.device)
        self._target = target
        self._origin = origin
        self._candidate = candidate
        self._draws = draws

    def terms(self, rows: Tensor, start: int, stop: int) -> Tensor:
        """Return terms start..stop of the minibatches of chains `rows` (R,): (R, stop - start)."""
        index = self._target.batches.more(self._draws, start, stop, rows)
        return self._target.differences.terms(self._origin[rows], self._candidate[rows], index)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the terms over all data, each (C,)."""
        self._count_a_pass()
        return self._target.differences.full_moments(self._origin, self._candidate)

    def largest(self) -> Tensor:
        """Return the largest absolute term over all data (C,)."""
        self._count_a_pass()
        return self._target.differences.full_largest(self._origin, self._candidate)

    def evaluated(self, size: Tensor) -> Tensor:
        """Return how many log-likelihoods the decisions (C,) cost; data read beyond them are not counted."""
        return self._target.differences.per_term * size + self.n_lik_overhead

    def _count_a_pass(self) -> None:
        """Count one pass over all data in this step, which gives all full-data statistics that a rule needs."""
        self.n_lik_overhead.fill_(self._target.differences.per_term * self.n)
