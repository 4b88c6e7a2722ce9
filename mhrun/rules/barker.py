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

    Exact like Metropolis, with at least half its acceptance; smooth in log r, which is what the tests
    that correct for minibatch noise build on.
    """

    keeps_ratio = True

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Accept iff a logistic variable is below log r; a ratio that is not a number is a rejection."""
        accepted = draws.uniform(Purpose.ACCEPT).logit() < contest.log_ratio
        return contest.to_verdict(accepted)

    def probability(self, log_ratio: Tensor) -> Tensor:
        """Return r / (1 + r) (C,); 0 where the ratio is not a number."""
        return log_ratio.sigmoid().nan_to_num(0.0)

    def native(self) -> Piece:
        """Return the threshold log(u / (1 - u))."""
        return _threshold


@piece
def _threshold(u: Any) -> Any:
    return math.log(u) - math.log1p(-u)
