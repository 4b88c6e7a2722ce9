"""Exact acceptance tests by Poisson thinning: one kernel, of which TunaMH, PoissonMH, SMH and MH-SS are cases."""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeThinning, Piece
from mhrun.parts import ARRIVALS, Rule
from mhrun.random import Draws, Purpose
from mhrun.types import Arrivals, Contest, Events, Verdict

_DRAWN_AT_ONCE = 32  # least number of arrivals drawn at once
_HELD = 1 << 20  # most arrivals in memory


class Thinning(Rule):
    """Accept iff log u < offset + sum over i of s_i log(g_i / f_i), with s_i ~ Poisson(f_i) for every datum i.

    t_i is the term of datum i divided by T, b_i >= |t_i| its bound and kappa_i >= 0 symmetric in the two points:

        f_i = max(-t_i, 0) + kappa_i,    g_i = max(t_i, 0) + kappa_i.

    The target is invariant, and moves are reversible, for every kappa: g_i is f_i with the points exchanged, and
    f_i - g_i = -t_i cancels what the exact log-ratio contains of datum i. A subclass chooses kappa_i through a:

        kappa_i = a b_i,  or with `lifts`  a b_i + (b_i - |t_i|) / 2.

    The counts are drawn without a pass over the data: arrivals at datum i at the rate (1 + a) b_i, each kept with
    probability f_i / ((1 + a) b_i). If the total rate (1 + a) B, B = sum of all b_i, exceeds `at_most` or n, the step
    is decided on all data; the rate is symmetric, so this leaves the step reversible.

    Args:
        at_most: most arrivals expected in a step that is not decided on all data; None: n.

    Raises:
        Refusal: `at_most` is not positive.
    """

    wants = ARRIVALS
    exact = True
    keeps_ratio = True
    corrects_noise = True
    lifts: bool = False

    def __init__(self, at_most: float | None = None) -> None:
        if at_most is not None and not at_most > 0:
            raise Refusal(f"at_most = {at_most:g} must be positive; leave it out for n.")
        self.at_most = at_most

    @abstractmethod
    def share(self, total: Tensor) -> Tensor:
        """Return a (C,), at least 0, from B (C,)."""

    @property
    def only_lowers(self) -> bool:
        """Whether every arrival that is kept makes g_i / f_i = 0: all kappa_i are 0."""
        return False

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Draw arrivals until every chain is decided."""
        supply = contest.arrivals
        assert supply is not None
        beta = contest.scale / supply.n  # 1/T
        total = beta * supply.total
        a = self.share(total)
        rate = (1 + a) * total
        log_u = draws.uniform(Purpose.ACCEPT).log()
        log_ratio = contest.offset.to(torch.float64, copy=True)
        size = torch.zeros(len(rate), dtype=torch.int64, device=rate.device)

        possible = log_ratio > -torch.inf
        most = supply.n if self.at_most is None else min(self.at_most, supply.n)
        reads_all = possible & ~(rate <= most)  # also if the rate is not finite
        if bool(reads_all.any()):
            rows = reads_all.nonzero()[:, 0]
            log_ratio[rows] += contest.scale[rows] * supply.mean(rows)
            size[rows] = supply.n
        undecided = possible & ~reads_all & (rate > 0)
        if self.only_lowers:
            undecided = undecided & (log_u < log_ratio)
        self._thin(supply, undecided.nonzero()[:, 0], beta, a, rate, log_ratio, size)
        unknown = torch.full_like(log_ratio, torch.nan)
        return Verdict(log_u < log_ratio, log_ratio, torch.where(reads_all, 0.0, unknown), size)

    def _native(self, args: tuple[float, ...], share: Piece) -> NativeThinning:
        """Return the form of this rule in a compiled loop."""
        most = math.inf if self.at_most is None else float(self.at_most)
        return NativeThinning(args, share, self.lifts, self.only_lowers, most)

    def _thin(
        self,
        supply: Arrivals,
        rows: Tensor,
        beta: Tensor,
        a: Tensor,
        rate: Tensor,
        log_ratio: Tensor,
        size: Tensor,
    ) -> None:
        """Add the arrivals' part to the log-ratios of the chains `rows` (R,), and count the arrivals, in place."""
        since, start = torch.zeros_like(rate), 0
        most = (
            _DRAWN_AT_ONCE if self.only_lowers else _HELD
        )  # most rejections come with one of the first arrivals
        while len(rows):
            rate_left = max(0.0, float((rate - since)[rows].max()))
            wanted = 1 << math.ceil(math.log2(rate_left + 4 * rate_left**0.5 + 1))
            drawn, most = min(wanted, max(1, min(most, _HELD // len(rows)))), 4 * most
            stop = start + max(_DRAWN_AT_ONCE, drawn)
            events = supply.arrive(rows, since[rows], start, stop, rate[rows])
            in_time = events.time <= rate[rows, None]
            step = self._steps(events, in_time, beta[rows, None], a[rows, None])
            # Sums run from arrival to arrival, so that they round alike however arrivals are cut into parts.
            sums = torch.cat((log_ratio[rows, None], step), -1).cumsum(-1)
            if self.only_lowers:  # the first that is kept rejects, and later ones need not be read
                in_time = in_time & (sums[:, :-1] > -torch.inf)
            count = in_time.sum(-1)
            size[rows] += count
            log_ratio[rows], since[rows] = sums.gather(-1, count[:, None])[:, 0], events.time[:, -1]
            going = since[rows] <= rate[rows]
            if self.only_lowers:
                going = going & (log_ratio[rows] > -torch.inf)
            rows, start = rows[going], stop

    def _steps(self, events: Events, in_time: Tensor, beta: Tensor, a: Tensor) -> Tensor:
        """Return log(g_i / f_i) of the arrivals that are kept, and 0 for the others, (R, k)."""
        t, b = beta * events.term, beta * events.bound
        kappa = a * b + (0.5 * (b - t.abs()) if self.lifts else 0.0)
        f, g = (-t).clamp_min(0) + kappa, t.clamp_min(0) + kappa
        kept = in_time & (events.uniform * (1 + a) * b < f)
        step = torch.where(kept, g.log() - f.log(), 0.0)
        return torch.where(in_time & t.isnan(), torch.nan, step)
