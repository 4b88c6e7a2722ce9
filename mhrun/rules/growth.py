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

    def verdict(self, contest: Contest, n: int, replacement: bool = False) -> Verdict:
        """Return the outcome as a rule's verdict on the contest.

        The variance of the log-ratio is scale^2 S^2 / b (1 - b/n), with S^2 the sample variance (divisor b - 1) of the
        b terms. The factor 1 - b/n is left out if data are drawn with replacement.
        """
        log_ratio = contest.offset + contest.scale * self.mean
        share = mean_variance(self.var, self.used, n, replacement)
        skew = skew_of_mean(self.var, self.third, self.used, n)
        return Verdict(self.accepted, log_ratio, contest.scale**2 * share, self.size, skew)


def mean_variance(var: Tensor, size: Tensor, n: int, replacement: bool = False) -> Tensor:
    """Return an unbiased estimate of the variance of a minibatch mean over minibatches; 0 for all data.

    S^2 / b (1 - b/n) with S^2 = b/(b - 1) `var` (Cochran 1977, Sampling Techniques, theorem 2.4).

    Args:
        var: variance of the terms, divisor `size`.
        size: b.
        n: number of data.
        replacement: whether data were drawn with replacement; the factor 1 - b/n is then left out.
    """
    if replacement:
        return var / (size - 1)
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
    accepted = torch.zeros(chains, dtype=torch.bool, device=device)
    read_in_all, n_used = (torch.zeros(chains, dtype=torch.int64, device=device) for _ in range(2))
    mean, var, third = (torch.zeros(chains, dtype=torch.float64, device=device) for _ in range(3))
    rows = torch.arange(chains, device=device)
    # Moments about the first stage's mean: sums of squares would lose the variance of terms far from zero.
    zero = torch.zeros(chains, dtype=torch.float64, device=device)
    shift = zero if first is None else first.shift
    sum_1, sum_2, sum_3 = zero, zero, zero
    stage, n_read = 0, 0
    while len(rows):
        # As many stages as fit in memory and read at most twice the data of the next stage.
        limit = min(2 * sizes[stage], n_read + _HELD // len(rows))
        stop = max(stage + 1, bisect_left(sizes, limit))
        terms = supply.terms(rows, overhead + n_read, overhead + sizes[stop - 1])
        if n_read == 0 and first is None:
            shift = _finite(terms[:, : sizes[0]].mean(-1))
        terms = terms - shift[:, None]
        edges = torch.tensor([upto - n_read for upto in sizes[stage:stop]], device=device)
        square = terms.square()
        sum_1, sum_2 = sum_1[:, None] + _sums(terms, edges), sum_2[:, None] + _sums(square, edges)
        sum_3 = sum_3[:, None] + _sums(square * terms, edges)
        at = torch.tensor(sizes[stage:stop], dtype=torch.int64, device=device)
        if first is not None and stop == len(sizes):  # all data are read
            sum_1[:, -1] += first.one[rows]
            sum_2[:, -1] += first.two[rows]
            sum_3[:, -1] += first.three[rows]
            at[-1] = sizes[-1] + overhead
        centred = sum_1 / at
        spread = (sum_2 / at - centred.square()).clamp_min(0.0)
        spread = torch.where(centred.isfinite(), spread, 0.0)
        stages = Stages(rows, stage + 1, at, shift[:, None] + centred, spread)
        verdict = judge(stages)
        decided = verdict != UNDECIDED
        decided_at = decided.to(torch.int8).argmax(1)
        ended = decided.any(1)
        decided_rows, decided_at = rows[ended], decided_at[ended]
        accepted[decided_rows] = verdict[ended, decided_at] == ACCEPT
        n_used[decided_rows] = at[decided_at]
        read_in_all[decided_rows] = torch.tensor(sizes, device=device)[stage + decided_at] + overhead
        mean[decided_rows] = stages.mean[ended, decided_at]
        var[decided_rows] = spread[ended, decided_at]
        middle = centred[ended, decided_at]
        cubes = sum_3[ended, decided_at] / at[decided_at]
        cubes = cubes - middle * (3 * var[decided_rows] + middle.square())
        # Of terms that are nearly equal only rounding would be left.
        third[decided_rows] = torch.where(var[decided_rows] > NEARLY_EQUAL * middle.square(), cubes, 0.0)
        going = ~ended
        rows, shift = rows[going], shift[going]
        sum_1, sum_2, sum_3 = sum_1[going, -1], sum_2[going, -1], sum_3[going, -1]
        stage, n_read = stop, sizes[stop - 1]
    return Grown(accepted, read_in_all, n_used, mean, var, third)


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
