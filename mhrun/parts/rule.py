"""The base class of acceptance rules."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from torch import Tensor

from mhrun.native import NativeDecision, NativeTest, Piece
from mhrun.parts.pairing import ARRIVALS, DIFFERENCE, SUPPLY
from mhrun.random import Draws
from mhrun.types import Contest, Verdict


class Rule(ABC):
    """Accepts or rejects the candidate of a contest."""

    wants: str = DIFFERENCE  # what it decides from; SUPPLY if it grows its minibatch
    exact: bool = False  # whether the target is stationary at any minibatch size, if the model's bounds hold
    keeps_ratio: bool = False  # whether it satisfies detailed balance for the ratio it receives
    min_batch: int = 1  # smallest minibatch from which it can estimate the noise of the log-ratio
    # Whether it corrects for minibatch noise; otherwise a run warns if that noise dominates
    corrects_noise: bool = False
    # The standard deviation of the log-ratio's minibatch noise above which a run warns; None: see `noise_limit_of`
    noise_limit: float | None = None

    barker: bool = False  # whether it accepts with Barker's probability r / (1 + r), possibly of a noisy r

    @property
    def wants_terms(self) -> bool:
        """Whether it chooses how many data it reads."""
        return self.wants in (SUPPLY, ARRIVALS)

    @property
    def first_batch(self) -> int | None:
        """The size of its first stage; None if it has no stages, or the size is not known in advance."""
        return None

    def noise_limit_of(self, m: float) -> float:
        """Return the `noise_limit` with minibatches of m data; infinity if a rule without one corrects for noise.

        The default of the others is 0.7, at which standard deviations of draws may be 14 % too large, see
        `mhrun.kernels.acceptance.noise_widening`.
        """
        if self.noise_limit is not None:
            return self.noise_limit
        return math.inf if self.corrects_noise else 0.7

    @property
    def rejects_above(self) -> float | None:
        """The estimated variance of the log-ratio's noise above which it rejects, whatever the log-ratio; or None."""
        return None

    @property
    def skew_limit(self) -> float:
        """The `Verdict.log_ratio_skew` above which a run warns."""
        return math.inf

    @property
    def skew_remedy(self) -> str:
        """The advice given in that warning."""
        return ""

    def acceptance_error(self, n: int, noise: float, rate: float) -> float:
        """Return the mean |a(L) - min(1, e^L)| that the test's design causes; 0 if it causes none.

        a is the acceptance probability that the test has, L the log-ratio from all data, over moves with the
        acceptance rate `rate`.

        Args:
            n: number of data.
            noise: (n/T) sd / sqrt(n - 1), with sd the standard deviation of the differences of log-likelihoods.
            rate: acceptance rate, in (0, 1).
        """
        return 0.0

    @abstractmethod
    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Accept or reject the candidate of every chain."""

    def probability(self, log_ratio: Tensor) -> Tensor | None:
        """Return the acceptance probability (C,) at log-ratios (C,), or None if it depends on more than those."""
        return None

    def native(self) -> Piece | NativeDecision | None:
        """Return the piece ``threshold(u)`` (accept iff it is below the log-ratio), a deciding piece, or None."""
        return None

    def sequential(self, n: int) -> NativeTest | None:
        """Return the pieces of a test on a supply of n data, or None."""
        return None
