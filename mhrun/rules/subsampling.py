"""MHSubLhd: the Metropolis-Hastings decision by a concentration bound."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal, check_choice
from mhrun.native import NativeTest, piece
from mhrun.native.philox import ACCEPT as ACCEPT_DRAW
from mhrun.native.philox import uniform
from mhrun.parts import SUPPLY, Rule
from mhrun.random import Draws, Purpose
from mhrun.rules.growth import ACCEPT, REJECT, UNDECIDED, Stages, grow
from mhrun.types import Contest, Verdict

_KAPPA = 7 / 3 + 3 / math.sqrt(2)
_BOUNDS = ("empirical_bernstein", "hoeffding_serfling", "bernstein_serfling")


class MHSubLhd(Rule):
    """Accept iff the mean term is above (log u - offset) / scale, decided by a concentration bound.

    Adaptive subsampling (Bardenet, Doucet & Holmes 2014): the minibatch grows by the factor gamma until the distance of
    the mean from the threshold exceeds a bound that holds with probability 1 - delta over all stages, or until all n
    data are read. The bound needs the range of the terms, [-C, C]. C is the largest absolute term, for which all data
    are read (counted separately as overhead; papers do not count it).

    Args:
        m: first minibatch size.
        gamma: growth factor of the minibatch, above 1.
        delta: bound on the probability of a wrong decision.
        p: stage k gets the share (p - 1) / p k^-p of delta, p > 1.
        bound: empirical_bernstein, hoeffding_serfling or bernstein_serfling.
        released: follow the code of Seita et al. (2017): the bound uses the standard deviation of all terms instead of
            the minibatch's, stages are counted from 2, and a decision is forced at the last size below n.

    Raises:
        Refusal: an invalid setting.
    """

    wants = SUPPLY

    def __init__(
        self,
        m: int,
        gamma: float = 2.0,
        delta: float = 0.01,
        p: float = 2.0,
        bound: Literal[
            "empirical_bernstein", "hoeffding_serfling", "bernstein_serfling"
        ] = "empirical_bernstein",
        released: bool = False,
    ) -> None:
        check_choice("bound", bound, _BOUNDS)
        if m < 1 or gamma <= 1 or not 0 < delta < 1 or p <= 1:
            raise Refusal(
                f"MHSubLhd needs m >= 1, gamma > 1, 0 < delta < 1 and p > 1, not {m}, {gamma:g}, {delta:g}, {p:g}."
            )
        self.m = m
        self.gamma = gamma
        self.delta = delta
        self.p = p
        self.bound = bound
        self.released = released

    @property
    def first_batch(self) -> int:
        """Return m."""
        return self.m

    def sizes(self, n: int) -> list[int]:
        """Return the sizes of the stages; with `released`, the last is below n."""
        sizes = [min(self.m, n)]
        while sizes[-1] < n:
            sizes.append(min(n, math.ceil(self.gamma * sizes[-1])))
        return sizes[:-1] if self.released and len(sizes) > 1 else sizes

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Read data until every chain is decided."""
        supply = contest.supply
        assert supply is not None
        n = supply.n
        sizes = self.sizes(n)
        threshold = (draws.uniform(Purpose.ACCEPT).log() - contest.offset) / contest.scale
        largest = supply.largest()
        spread = supply.moments()[1] if self.released else None

        def judge(stages: Stages) -> Tensor:
            stage = torch.arange(stages.first, stages.first + len(stages.size), device=threshold.device)
            var = stages.var if spread is None else spread[stages.rows, None].expand_as(stages.mean)
            share = (self.p - 1) / self.p * (stage + self.released).double() ** -self.p * self.delta
            limit = self._limit(stages.size, var, largest[stages.rows, None], share, n)
            gap = stages.mean - threshold[stages.rows, None]
            decided = (gap.abs() >= limit) | (stages.size == sizes[-1])
            return torch.where(decided, torch.where(gap > 0, ACCEPT, REJECT), UNDECIDED).to(torch.int8)

        outcome = grow(supply, sizes, judge, len(contest.scale), contest.scale.device)
        return outcome.verdict(contest, n)

    def _limit(self, size: Tensor, var: Tensor, largest: Tensor, delta: Tensor, n: int) -> Tensor:
        """Return the distance of the mean of `size` terms from that of all, exceeded with probability <= delta."""
        t = size.double()
        if self.bound == "empirical_bernstein":
            log = torch.log(3 / delta)
            return (2 * var * log / t).sqrt() + 6 * largest * log / t
        if self.bound == "hoeffding_serfling":
            return largest * (2 * (1 - (t - 1) / n) * torch.log(2 / delta) / t).sqrt()
        log = torch.log(5 / delta)
        finite_factor = torch.where(t <= n / 2, 1 - (t - 1) / n, (1 - t / n) * (1 + 1 / t))
        return (2 * var * finite_factor * log / t).sqrt() + _KAPPA * 2 * largest * log / t

    def sequential(self, n: int) -> NativeTest:
        """Return the pieces of the compiled loop."""
        sizes = self.sizes(n)
        shares = [(self.p - 1) / self.p * (i + 1 + self.released) ** -self.p for i in range(len(sizes))]
        args = (np.asarray(shares) * self.delta, _BOUNDS.index(self.bound), self.released)
        return NativeTest(args, sizes, True, _begin, _judge)


@piece
def _begin(args: Any, test: Any, seen: Any, draw: Any) -> Any:
    log_u = math.log(uniform(ACCEPT_DRAW, draw))
    return (log_u - test.offset) / test.scale, seen.largest, seen.var, 0


@piece
def _judge(args: Any, params: Any, test: Any, seen: Any) -> Any:
    shares, bound, released = args
    n, size, share = test.n, seen.size, args[0][seen.stage]
    spread = params[2] if released else seen.var
    if bound == 0:
        log = math.log(3 / share)
        limit = math.sqrt(2 * spread * log / size) + 6 * params[1] * log / size
    elif bound == 1:
        limit = params[1] * math.sqrt(2 * (1 - (size - 1) / n) * math.log(2 / share) / size)
    else:
        log = math.log(5 / share)
        finite_factor = 1 - (size - 1) / n if size <= n / 2 else (1 - size / n) * (1 + 1 / size)
        limit = math.sqrt(2 * spread * finite_factor * log / size) + _KAPPA * 2 * params[1] * log / size
    gap = seen.mean - params[0]
    verdict = UNDECIDED
    if abs(gap) >= limit or seen.stage == len(shares) - 1:
        verdict = ACCEPT if gap > 0 else REJECT
    return verdict
