"""The Metropolis-Hastings rule."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mhrun.native import Piece, piece
from mhrun.parts import Rule
from mhrun.random import Draws, Purpose
from mhrun.types import Contest, Verdict


class Metropolis(Rule):
    """Accept with probability min(1, r) (Metropolis et al. 1953; Hastings 1970).

    With the exact ratio it leaves the target invariant. MINT and MHBT use it with an estimated ratio.
    """

    keeps_ratio = True

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Accept iff log u < log r; NaN is rejected."""
        accepted = draws.uniform(Purpose.ACCEPT).log() < contest.log_ratio
        return contest.to_verdict(accepted)

    def probability(self, log_ratio: Tensor) -> Tensor:
        """Return min(1, r) (C,); 0 where r is NaN."""
        return log_ratio.exp().clamp_max(1.0).nan_to_num(0.0)

    def native(self) -> Piece:
        """Return the threshold log u."""
        return _threshold


@piece
def _threshold(u: Any) -> Any:
    return math.log(u)
