"""Barker's rule on a difference with known noise, which becomes part of the decision's randomness."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch

from mhrun.native import NativeDecision, piece
from mhrun.native.philox import ACCEPT, USE, normals, uniform
from mhrun.parts import Rule
from mhrun.random import Draws, Purpose
from mhrun.rules.correction import inverse, inverted, table
from mhrun.types import Contest, Verdict

u64 = np.uint64


class Compensated(Rule):
    """Accept iff D + z_N + z_C > 0 (Luo et al. 2020, Algorithm 1, lines 5 to 8; Seita et al. 2017, Algorithm 1).

    D is the log-ratio; its normal noise has the variance s^2 given by the contest. z_N ~ N(0, v - s^2) raises the
    variance of the noise to v, and adding z_C makes it logistic (`mhrun.rules.correction`). The decision then has
    Barker's acceptance probability. If s^2 > v, z_N does not exist and the candidate is rejected. The stationary
    distribution is preserved if the noise is normal and s^2 does not depend on it, and is the same for the move and its
    reverse. Of a minibatch of skewed terms s^2 and D are dependent: where s^2 > v is frequent, candidates are accepted
    on minibatches with small variances, and draws are shifted; a run warns. `MHMinibatch` reads more data instead.

    Args:
        variance: v, the total variance of the noise; Luo et al. use 0.2. Towards pi^2 / 3 the table becomes too
            inaccurate: above about 2.8 with ``nnls``.
        density: density of z_C: ``nnls``, ``paper`` or ``series``, see `MHMinibatch`.
        lam: see `MHMinibatch`.
        terms: number of terms of the series.

    Raises:
        Refusal: an invalid setting.
    """

    corrects_noise = True
    barker = True
    min_batch = 2

    def __init__(
        self,
        variance: float = 1.0,
        density: Literal["paper", "nnls", "series"] = "nnls",
        lam: float | None = None,
        terms: int | None = None,
    ) -> None:
        self.variance = variance
        self._table = table(density, variance, lam, terms=terms)

    @property
    def rejects_above(self) -> float:
        """The variance v."""
        return self.variance

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Decide every row."""
        assert contest.difference is not None
        noise = contest.scale**2 * contest.difference.error
        normal = draws.normal(Purpose.ACCEPT, 1)[:, 0]
        corrected = inverse(draws.uniform(Purpose.ACCEPT, use=1), self._table)
        top_up = (self.variance - noise).clamp_min(0.0).sqrt() * normal
        accepted = (contest.log_ratio + top_up + corrected > 0) & (noise <= self.variance)
        return contest.to_verdict(torch.as_tensor(accepted))

    def native(self) -> NativeDecision:
        """Return the piece that decides on a log-ratio with a known noise variance."""
        table = (self._table.probabilities.numpy(), self._table.points.numpy())
        return NativeDecision((float(self.variance), *table), _decide)


@piece
def _decide(args: Any, log_ratio: Any, noise: Any, size: Any, draw: Any) -> Any:
    variance, probabilities, points = args
    normal = normals(u64(0), ACCEPT, draw)[0]
    corrected = inverted(uniform(ACCEPT + USE, draw), probabilities, points)
    top_up = math.sqrt(max(variance - noise, 0.0)) * normal
    return log_ratio + top_up + corrected > 0 and noise <= variance
