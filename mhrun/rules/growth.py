"""Growing a minibatch until a test can decide."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.native import ACCEPT, REJECT, UNDECIDED
from mhrun.types import Contest, Supply, Verdict

__all__ = ["ACCEPT", "REJECT", "UNDECIDED", "Grown", "Judge", "Looks", "grow", "steps_of"]

_HELD = 1 << 22  # terms held at once


class Looks(NamedTuple):
    """What some chains (R,) know at some looks (L,) of a sequential test."""

    rows: Tensor  # (R,) the chains
    first: int  # the number of the first of these looks; a test's first look is 1
    size: Tensor  # (L,) data read at each look, int64
    mean: Tensor  # (R, L) of the terms so far
    var: Tensor  # (R, L) of the terms so far, divisor size


class Grown(NamedTuple):
    """How a sequential test ended, each (C,)."""

    accepted: Tensor
    size: Tensor  # data behind the decision
    mean: Tensor  # of their terms
    var: Tensor  # divisor size

    def verdict(self, contest: Contest, n: int) -> Verdict:
        """Return it as a rule's verdict on the contest that it was about."""
        log_ratio = contest.offset + contest.scale * self.mean
        error = contest.scale**2 * self.var / self.size * (1 - self.size / n)
        return Verdict(self.accepted, log_ratio, error, self.size)


Judge = Callable[[Looks], Tensor]
"""Looks -> (R, L): ACCEPT, REJECT or UNDECIDED at each look; at n data it must decide."""


def grow(supply: Supply, sizes: Sequence[int], judge: Judge, chains: int, device: torch.device) -> Grown:
    """Read data until every chain is decided, and return how.

    Chains go in step: the data of several looks are drawn at once, twice as many data in each round, and
    each chain ends at the first look that decides. So the decisions are those of one look after the other,
    while the device is asked only a few times. What is read beyond a decision changes no count.

    Args:
        supply: where the terms come from.
        sizes: how many data each look has, increasing; the last is n.
        judge: the test.
        chains: C.
        device: of the chains.
    """
    accepted = torch.zeros(chains, dtype=torch.bool, device=device)
    size = torch.zeros(chains, dtype=torch.int64, device=device)
    mean, var = (torch.zeros(chains, dtype=torch.float64, device=device) for _ in range(2))
    rows = torch.arange(chains, device=device)
    # Moments about the first look's mean: sums of squares would lose the variance of terms far from zero.
    shift, one, two = (torch.zeros(chains, dtype=torch.float64, device=device) for _ in range(3))
    look, read = 0, 0
    while len(rows):
        # As many looks as at most double what the next one reads, and fit.
        limit = min(2 * sizes[look], read + _HELD // len(rows))
        stop = max(look + 1, bisect_left(sizes, limit))
        terms = supply.terms(rows, read, sizes[stop - 1])
        if read == 0:
            shift = terms[:, : sizes[0]].mean(-1)
        terms = terms - shift[:, None]
        edges = torch.tensor([upto - read for upto in sizes[look:stop]], device=device)
        one, two = one[:, None] + _sums(terms, edges), two[:, None] + _sums(terms.square(), edges)
        at = torch.tensor(sizes[look:stop], dtype=torch.int64, device=device)
        centred = one / at
        looks = Looks(
            rows, look + 1, at, shift[:, None] + centred, (two / at - centred.square()).clamp_min(0.0)
        )
        verdict = judge(looks)
        decided = verdict != UNDECIDED
        first = decided.to(torch.int8).argmax(1)
        ended = decided.any(1)
        who, when = rows[ended], first[ended]
        accepted[who] = verdict[ended, when] == ACCEPT
        size[who] = at[when]
        mean[who] = looks.mean[ended, when]
        var[who] = looks.var[ended, when]
        going = ~ended
        rows, shift, one, two = rows[going], shift[going], one[going, -1], two[going, -1]
        look, read = stop, sizes[stop - 1]
    return Grown(accepted, size, mean, var)


@lru_cache(maxsize=8)
def steps_of(n: int, m: int) -> tuple[int, ...]:
    """Return m, 2m, 3m, ... up to n."""
    return (*range(m, n, m), n)


def _sums(values: Tensor, edges: Tensor) -> Tensor:
    """Return the sums of values (R, k) up to each edge: (R, L)."""
    return values.cumsum(-1)[:, edges - 1]
