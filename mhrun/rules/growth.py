"""Sequential tests: a minibatch grows in stages until the test decides."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.native import ACCEPT, REJECT, UNDECIDED
from mhrun.native.forms import NEARLY_EQUAL
from mhrun.types import Contest, Supply, Verdict

__all__ = [
    "ACCEPT",
    "REJECT",
    "UNDECIDED",
    "Grown",
    "Judge",
    "Moments",
    "Stages",
    "geometric_steps",
    "grow",
    "mean_variance",
    "read_pilot",
    "skew_of_mean",
    "steps_of",
]

_HELD = 1 << 22  # most terms in memory


class Stages(NamedTuple):
    """Statistics of some chains (R,) at some stages (L,) of a sequential test."""

    rows: Tensor  # (R,) the chains
    first: int  # the number of the first of these stages; a test's first stage is 1
    size: Tensor  # (L,) data read up to each stage, int64, excluding the pilot's unless all n are read
    mean: Tensor  # (R, L) of the terms so far
    var: Tensor  # (R, L) of the terms so far, divisor size


class Moments(NamedTuple):
    """Sums of the terms of a pilot minibatch about `shift`, each (C,)."""

    size: int
    shift: Tensor
    one: Tensor  # sum of (term - shift)
    two: Tensor  # sum of (term - shift)^2
    three: Tensor  # sum of (term - shift)^3

    @property
    def variance(self) -> Tensor:
        """The sample variance of the terms, divisor size - 1."""
        centred = (self.two - self.one.square() / self.size).clamp_min(0.0)
        return centred / (self.size - 1)


class Grown(NamedTuple):
    """The outcome of a sequential test, each (C,)."""

    accepted: Tensor
    size: Tensor  # data read, including the pilot's
    used: Tensor  # number of data whose mean was used for the decision
    mean: Tensor  # mean of their terms
    var: Tensor  # variance of their terms, divisor `used`
    third: Tensor  # third central moment of their terms, divisor `used`

    def record(
        self, stages: Stages, at: tuple[Tensor, Tensor], accepted: Tensor, size: Tensor, third: Tensor
    ) -> None:
        """Write the outcomes of the chains that end: `at` is which of the rows end (R,), and their stages (E,).

        `accepted`, `size` and `third` are theirs, each (E,).
        """
        ended, stage = at
        rows = stages.rows[ended]
        self.accepted[rows] = accepted
        self.size[rows] = size
        self.used[rows] = stages.size[stage]
        self.mean[rows] = stages.mean[at]
        self.var[rows] = stages.var[at]
        self.third[rows] = third

    def verdict(self, contest: Contest, n: int) -> Verdict:
        """Return the outcome as a rule's verdict on the contest.

        The variance of the log-ratio is scale^2 S^2 / b (1 - b/n), with S^2 the sample variance (divisor b - 1) of the
        b terms.
        """
        log_ratio = contest.offset + contest.scale * self.mean
        share = mean_variance(self.var, self.used, n)
        skew = skew_of_mean(self.var, self.third, self.used, n)
        return Verdict(self.accepted, log_ratio, contest.scale**2 * share, self.size, skew)


def mean_variance(var: Tensor, size: Tensor, n: int) -> Tensor:
    """Return an unbiased estimate of the variance of a minibatch mean over minibatches; 0 for all data.

    S^2 / b (1 - b/n) with S^2 = b/(b - 1) `var` (Cochran 1977, Sampling Techniques, theorem 2.4).

    Args:
        var: variance of the terms, divisor `size`.
        size: b.
        n: number of data.
    """
    return torch.where(size < n, var / (size - 1).clamp_min(1) * (1 - size / n), 0.0)


def skew_of_mean(var: Tensor, third: Tensor, size: Tensor, n: int) -> Tensor:
    """Return the skewness of the mean, (skewness of the terms) / sqrt(size); 0 for all n data."""
    skew = third / (var**1.5 * size.double().sqrt())
    return torch.where((size == n) | (var <= 0), 0.0, skew)


Judge = Callable[[Stages], Tensor]
"""Maps stages to (R, L): ACCEPT, REJECT or UNDECIDED at each stage; the last stage must decide."""


def read_pilot(supply: Supply, size: int, chains: int, device: torch.device) -> Moments:
    """Read the first `size` data of every chain's minibatch, and return the moments of their terms."""
    terms = supply.terms(torch.arange(chains, device=device), 0, size)
    shift = _finite(terms.mean(-1))
    gap = terms - shift[:, None]
    return Moments(size, shift, gap.sum(-1), gap.square().sum(-1), gap.pow(3).sum(-1))


def grow(
    supply: Supply,
    sizes: Sequence[int],
    judge: Judge,
    chains: int,
    device: torch.device,
    first: Moments | None = None,
) -> Grown:
    """Read data until every chain has decided, and return the outcome.

    All chains advance together. Each round draws the data of several stages, about twice as many as the round before,
    and each chain ends at its first deciding stage. The decisions are those of a test stage by stage, with few device
    synchronisations. Data read beyond a decision are not counted.

    Args:
        supply: source of the terms.
        sizes: number of data at each stage, increasing; the last is n, or n minus the pilot's.
        judge: the test.
        chains: C.
        device: device of the chains.
        first: moments of a pilot, whose data precede those of the stages and join them when all n are read.
    """
    overhead = 0 if first is None else first.size
    outcome = _undecided(chains, device)
    rows = torch.arange(chains, device=device)
    zero = torch.zeros(chains, dtype=torch.float64, device=device)
    # Moments about the first stage's mean: sums of squares would lose the variance of terms far from zero.
    shift = zero if first is None else first.shift
    sums = _PowerSums(zero, zero, zero)
    stage, n_read = 0, 0
    while len(rows):
        # As many stages as fit in memory and read at most twice the data of the next stage.
        limit = min(2 * sizes[stage], n_read + _HELD // len(rows))
        stop = max(stage + 1, bisect_left(sizes, limit))
        terms = supply.terms(rows, overhead + n_read, overhead + sizes[stop - 1])
        if n_read == 0 and first is None:
            shift = _finite(terms[:, : sizes[0]].mean(-1))
        terms = terms - shift[:, None]
        sums = sums.extended(
            terms, torch.tensor([upto - n_read for upto in sizes[stage:stop]], device=device)
        )
        size = torch.tensor(sizes[stage:stop], dtype=torch.int64, device=device)
        if first is not None and stop == len(sizes):  # all data are read
            sums.add_to_last(first, rows)
            size[-1] = sizes[-1] + overhead
        centred, var = sums.mean_and_variance(size)
        stages = Stages(rows, stage + 1, size, shift[:, None] + centred, var)
        decisions = judge(stages)
        is_decision = decisions != UNDECIDED
        ended, deciding = is_decision.any(1), is_decision.to(torch.int8).argmax(1)
        at = (ended, deciding[ended])
        read = torch.tensor(sizes, device=device)[stage + at[1]] + overhead
        third = sums.third_moment(size, centred, var, at)
        outcome.record(stages, at, decisions[at] == ACCEPT, read, third)
        going = ~ended
        rows, shift, sums = rows[going], shift[going], sums.of_last(going)
        stage, n_read = stop, sizes[stop - 1]
    return outcome


def _undecided(chains: int, device: torch.device) -> Grown:
    """Return an outcome to be filled, of zeros (C,)."""
    read, used = (torch.zeros(chains, dtype=torch.int64, device=device) for _ in range(2))
    moments = (torch.zeros(chains, dtype=torch.float64, device=device) for _ in range(3))
    return Grown(torch.zeros(chains, dtype=torch.bool, device=device), read, used, *moments)


class _PowerSums(NamedTuple):
    """Sums of the terms that some chains have read about their shifts: of each chain (R,), or by stage (R, L)."""

    one: Tensor  # sum of (term - shift)
    two: Tensor  # sum of (term - shift)^2
    three: Tensor  # sum of (term - shift)^3

    def extended(self, terms: Tensor, edges: Tensor) -> _PowerSums:
        """Return the sums (R, L) of those terms (R,) and of others (R, k) about the shift, up to each edge (L,)."""
        square = terms.square()
        powers = (terms, square, square * terms)
        return _PowerSums(
            *(before[:, None] + _sums(power, edges) for before, power in zip(self, powers, strict=True))
        )

    def add_to_last(self, first: Moments, rows: Tensor) -> None:
        """Add the terms of a pilot of all chains to the sums of some chains at the last stage."""
        self.one[:, -1] += first.one[rows]
        self.two[:, -1] += first.two[rows]
        self.three[:, -1] += first.three[rows]

    def of_last(self, chosen: Tensor) -> _PowerSums:
        """Return the sums of the chosen chains at the last stage."""
        return _PowerSums(*(sums[chosen, -1] for sums in self))

    def mean_and_variance(self, size: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of (term - shift), and the variance of the terms with divisor size (L,), each (R, L)."""
        mean = self.one / size
        var = (self.two / size - mean.square()).clamp_min(0.0)
        return mean, torch.where(mean.isfinite(), var, 0.0)

    def third_moment(self, size: Tensor, mean: Tensor, var: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
        """Return the third central moments of the terms of some chains, each at a stage."""
        mean, var = mean[at], var[at]
        cubes = self.three[at] / size[at[1]]
        cubes = cubes - mean * (3 * var + mean.square())
        # Of terms that are nearly equal only rounding would be left.
        return torch.where(var > NEARLY_EQUAL * mean.square(), cubes, 0.0)


@lru_cache(maxsize=8)
def steps_of(n: int, m: int) -> tuple[int, ...]:
    """Return m, 2m, 3m, ... up to n."""
    return (*range(m, n, m), n)


@lru_cache(maxsize=8)
def geometric_steps(n: int, first: int, ratio: float = 1.05) -> tuple[int, ...]:
    """Return first, and sizes that grow by `ratio` (by 1 at least), up to n."""
    sizes = [min(first, n)]
    while sizes[-1] < n:
        sizes.append(min(n, max(sizes[-1] + 1, math.ceil(ratio * sizes[-1]))))
    return tuple(sizes)


def _finite(values: Tensor) -> Tensor:
    """Return values with 0 for those that are not finite.

    The log-likelihood of a datum that is impossible at the candidate is -infinity, and so is the mean of the terms:
    about a shift of -infinity it would be NaN.
    """
    return torch.where(values.isfinite(), values, 0.0)


def _sums(values: Tensor, edges: Tensor) -> Tensor:
    """Return the sums of values (R, k) up to each edge: (R, L)."""
    return values.cumsum(-1)[:, edges - 1]
