"""Barker's rule."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mhrun.native import Piece, piece
from mhrun.parts import Rule
from mhrun.random import Draws, Purpose
from mhrun.types import Contest, Verdict


class Barker(Rule):
    """Accept with probability r / (1 + r) (Barker 1965).

    Exact like Metropolis, with at least half its acceptance probability. It is smooth in log r; tests that correct for
    minibatch noise rely on this.
    """

    keeps_ratio = True
    barker = True

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Accept iff a logistic variable is below log r; NaN is rejected."""
        accepted = draws.uniform(Purpose.ACCEPT).logit() < contest.log_ratio
        return contest.to_verdict(accepted)

    def probability(self, log_ratio: Tensor) -> Tensor:
        """Return r / (1 + r) (C,); 0 where r is NaN."""
        return log_ratio.sigmoid().nan_to_num(0.0)

    def native(self) -> Piece:
        """Return the threshold log(u / (1 - u))."""
        return _threshold


@piece
def _threshold(u: Any) -> Any:
    return math.log(u) - math.log1p(-u)
