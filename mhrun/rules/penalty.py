"""The penalty method: Metropolis's rule with a correction for the noise of the log-ratio."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from mhrun.native import NativeDecision, piece
from mhrun.native.philox import ACCEPT, uniform
from mhrun.parts import Rule
from mhrun.random import Draws, Purpose
from mhrun.types import Contest, Verdict


class Penalty(Rule):
    """Accept with probability min(1, exp(r - u)),  u = v/2 + v^2 / (4 (m + 1)) + v^3 / (3 (m + 1) (m + 3)).

    (Ceperley & Dewing 1999, J. Chem. Phys. 110, 9812.) r is the estimated log-ratio, v its variance over minibatches,
    estimated from the same m terms. If r is normal around the log-ratio R and v is known, u = v/2 and the mean
    acceptance probability

        a(R) = Phi((R - v/2) / sqrt(v)) + e^R Phi(-(R + v/2) / sqrt(v))

    satisfies a(R) = e^R a(-R): the stationary distribution is exact, if v is the same for the move and its reverse. The
    other terms allow for the error of an estimated v; the series holds for v < m/4. At equal v it accepts more often
    than the tests that reproduce Barker's rule, as long as v < 1.8.

    The noise must be independent of the points: a fresh minibatch for each decision (`Shared`), fixed in size. Skewed
    or heavy-tailed terms bias it.

    Args:
        estimated: whether v is estimated; otherwise u = v/2.
    """

    corrects_noise = True
    noise_limit = 2.0  # a candidate with R = 0 is then accepted with probability 0.32
    min_batch = 2

    def __init__(self, estimated: bool = True) -> None:
        self.estimated = estimated

    def noise_limit_of(self, m: float) -> float:
        """Return the least of 2 and sqrt(m) / 2, up to which the series holds."""
        limit = super().noise_limit_of(m)
        return min(limit, math.sqrt(m) / 2) if self.estimated else limit

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Accept iff a uniform's logarithm is below r - u; NaN is rejected."""
        assert contest.difference is not None
        noise = contest.log_ratio_var
        u = penalty(noise, contest.difference.size) if self.estimated else noise / 2
        return contest.to_verdict(draws.uniform(Purpose.ACCEPT).log() < contest.log_ratio - u)

    def native(self) -> NativeDecision:
        """Return the deciding piece."""
        return NativeDecision((self.estimated,), _decide)


def penalty(noise: Tensor, size: Tensor) -> Tensor:
    """Return u (C,) for estimated variances of log-ratios (C,), each from `size` terms (C,)."""
    series = noise**2 / (4 * (size + 1)) + noise**3 / (3 * (size + 1) * (size + 3))
    return noise / 2 + series


@piece
def _decide(args: Any, log_ratio: Any, noise: Any, size: Any, draw: Any) -> Any:
    u = noise / 2
    if args[0]:
        u += noise**2 / (4.0 * (size + 1)) + noise**3 / (3.0 * (size + 1) * (size + 3))
    return math.log(uniform(ACCEPT, draw)) < log_ratio - u
