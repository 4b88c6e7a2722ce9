"""Metropolis's rule for estimates of the likelihood that are kept with their points."""

from __future__ import annotations

import math

from mhrun.errors import Refusal
from mhrun.parts import ESTIMATES, Rule
from mhrun.random import Draws, Purpose
from mhrun.types import Contest, Verdict


class PseudoMarginal(Rule):
    """Accept with probability min(1, r),  log r = log r^ - (s'^2 - s^2) / 2.

    r^ is the ratio of the two estimates exp(l(theta, u) / T), s^2 the estimated variance of l(theta, u) / T over
    minibatches u (Ceperley & Dewing 1999; Quiroz et al. 2019). The chain of (theta, u) has the stationary density

        prior(theta) exp(l(theta, u) / T - s^2(theta, u) / 2) p(u),

    exactly. Its marginal is the target only if exp(l / T - s^2 / 2) is unbiased up to a constant: approximately, where
    l is nearly normal. With S the variance of l / T and normal terms the marginal is the target times

        exp(S/2 - (m - 1)/2 log(1 + S / (m - 1))),  about exp(S^2 / (4 (m - 1))).

    Large S also makes chains stick at points whose estimates are high by chance; S of 1 to 3 is efficient.

    Args:
        correct: whether s^2 is subtracted; False gives the plain ratio of estimates.
    """

    wants = ESTIMATES
    min_batch = 2
    noise_limit = math.inf  # what counts is the noise of one estimate, not that of a difference of two

    def __init__(self, correct: bool = True) -> None:
        if not isinstance(correct, bool):
            raise Refusal(f"correct = {correct!r} must be true or false.")
        self.correct = correct

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Accept iff log u < log r; NaN is rejected."""
        assert contest.difference is not None
        log_ratio = contest.log_ratio
        if self.correct:
            assert contest.difference.error_change is not None
            log_ratio = log_ratio - contest.scale**2 * contest.difference.error_change / 2
        verdict = contest.to_verdict(draws.uniform(Purpose.ACCEPT).log() < log_ratio)
        return verdict._replace(log_ratio=log_ratio)
