"""MHminibatch: Barker's rule from a minibatch, with its noise made part of the decision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeTest, piece
from mhrun.native.philox import ACCEPT as ACCEPT_DRAW
from mhrun.native.philox import USE, normals, uniform
from mhrun.random import Draws, Purpose
from mhrun.rules.correction import inverse, inverted, table
from mhrun.rules.growth import ACCEPT, REJECT, UNDECIDED, Looks, grow, steps_of
from mhrun.types import Contest, Verdict

u64 = np.uint64


class MHMinibatch:
    """Accept iff D + X_nc + X_corr > 0, as soon as D is known well enough (Seita et al. 2017, Algorithm 1).

    D is the log-ratio estimated from b data, with variance s^2. Once s^2 < v, X_nc ~ N(0, v - s^2) tops its
    noise up to variance v = sigma^2, and X_corr makes of it a logistic variable (`mhrun.rules.correction`): if D
    is normal, the step accepts with Barker's probability 1 / (1 + exp(-log r)), whatever b. Until then m more
    data are read. When all n are, the exact Barker test decides.

    Args:
        m: first minibatch size, and how much it grows by.
        sigma: the standard deviation that D's noise is topped up to, below pi / sqrt(3).
        density: of X_corr: ``nnls`` (right to 4e-6 in distribution), ``paper`` (to 9e-4) or ``series`` (Luo et al.
            2020, equation 9; `mhrun.rules.series` tells its errors).
        lam: of the paper's regularised least squares, None for its 10; of the series its bandwidth, None for infinity.
        half_width_steps: of the paper's grid; None for its 4000.
        five_sd: decide by the sign of D when |D| > 5 s: ``off`` (the paper's text), ``undecided`` (only while
            s^2 >= v; it spares data and errs with probability 3e-7 at most), or ``always`` (the authors' code;
            with s^2 < v it leaves out the randomness that Barker's rule has).
        finite: reckon with s^2 shrinking as the minibatch becomes all data; the paper does not.
        at_end: when all data are read: ``barker`` (exact) or ``sign`` (of D: the authors' code).
        prior: False leaves the contest's offset out of D, prior and proposal densities, so that the law is that of
            a flat prior: the authors' code, which has a symmetric proposal.
        terms: of the series; None for 3.
        variance: sigma^2, for who knows that one; sigma is not read then.

    Raises:
        Refusal: a setting that has no meaning.
    """

    grows = True

    def __init__(
        self,
        m: int,
        sigma: float = 1.0,
        density: str = "nnls",
        lam: float | None = None,
        half_width_steps: int | None = None,
        five_sd: str = "off",
        finite: bool = False,
        at_end: str = "barker",
        prior: bool = True,
        terms: int | None = None,
        variance: float | None = None,
    ) -> None:
        if m < 2:
            raise Refusal(f"m = {m} data have no variance; choose m >= 2.")
        for name, value, known in (
            ("five_sd", five_sd, ("off", "undecided", "always")),
            ("at_end", at_end, ("barker", "sign")),
        ):
            if value not in known:
                raise Refusal(f"{name} = '{value}' is unknown; choose {', '.join(known)}.")
        self.m = m
        self.variance = math.copysign(sigma**2, sigma) if variance is None else variance
        self.five_sd = five_sd
        self.finite = finite
        self.at_end = at_end
        self.prior = prior
        self._table = table(density, self.variance, lam, half_width_steps, terms)

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Read data until every chain is decided."""
        offset = contest.offset if self.prior else torch.zeros_like(contest.offset)
        supply = contest.supply
        assert supply is not None
        normal = draws.normal(Purpose.ACCEPT, 1)[:, 0]
        corrected = inverse(draws.uniform(Purpose.ACCEPT, use=1), self._table)
        logistic = draws.uniform(Purpose.ACCEPT, use=2).logit()
        v, n = self.variance, supply.n

        def judge(looks: Looks) -> Tensor:
            rows = looks.rows[:, None]
            d = offset[rows] + contest.scale[rows] * looks.mean
            s2 = self._variance(contest.scale[rows], looks.var, looks.size, n)
            known = s2 < v
            noise = (v - s2).clamp_min(0.0).sqrt() * normal[rows] + corrected[rows]
            verdict = torch.where(known, (d + noise > 0).to(torch.int8), UNDECIDED)
            if self.five_sd != "off":
                far = d.abs() > 5 * s2.sqrt()
                if self.five_sd == "undecided":
                    far &= ~known
                verdict = torch.where(far, torch.where(d > 0, ACCEPT, REJECT).to(torch.int8), verdict)
            end = d + logistic[rows] > 0 if self.at_end == "barker" else d > 0
            last = (looks.size == n) & ((verdict == UNDECIDED) | (self.at_end == "barker"))
            return torch.where(last, end.to(torch.int8), verdict)

        found = grow(supply, steps_of(n, min(self.m, n)), judge, len(contest.scale), contest.scale.device)
        return found.verdict(contest, n)

    def _variance(self, scale: Tensor, var: Tensor, size: Tensor, n: int) -> Tensor:
        share = 1 - (size - 1) / (n - 1) if self.finite and n > 1 else 1.0
        return scale**2 * var / size * share

    def native(self) -> None:
        """Return None: it is no threshold on one difference; see `sequential`."""
        return

    def sequential(self, n: int) -> NativeTest:
        """Return the pieces of the fused loop."""
        pieces = (self._table.probabilities.numpy(), self._table.points.numpy())
        five_sd = ("off", "undecided", "always").index(self.five_sd)
        args = (self.variance, five_sd, self.finite, self.at_end == "barker", *pieces, self.prior)
        return NativeTest(args, steps_of(n, min(self.m, n)), False, _begin, _judge)


@piece
def _begin(
    args: Any,
    n: Any,
    scale: Any,
    offset: Any,
    mean: Any,
    var: Any,
    largest: Any,
    key: Any,
    step: Any,
    chain: Any,
) -> Any:
    probabilities, points = args[4], args[5]
    normal = normals(u64(0), ACCEPT_DRAW, step, chain, key)[0]
    corrected = inverted(uniform(ACCEPT_DRAW + USE, step, chain, key), probabilities, points)
    w = uniform(ACCEPT_DRAW + USE + USE, step, chain, key)
    return normal, corrected, math.log(w) - math.log1p(-w), 0.0


@piece
def _judge(
    args: Any, noted: Any, look: Any, size: Any, n: Any, scale: Any, offset: Any, mean: Any, var: Any
) -> Any:
    v, five_sd, finite, barker = args[0], args[1], args[2], args[3]
    d = scale * mean + (offset if args[6] else 0.0)
    s2 = scale * scale * var / size
    if finite and n > 1:
        s2 *= 1.0 - (size - 1) / (n - 1)
    verdict = UNDECIDED
    if s2 < v:
        verdict = ACCEPT if d + math.sqrt(v - s2) * noted[0] + noted[1] > 0 else REJECT
    if (five_sd == 2 or (five_sd == 1 and not s2 < v)) and abs(d) > 5 * math.sqrt(s2):
        verdict = ACCEPT if d > 0 else REJECT
    if size == n and barker:
        verdict = ACCEPT if d + noted[2] > 0 else REJECT
    elif size == n and verdict == UNDECIDED:
        verdict = ACCEPT if d > 0 else REJECT
    return verdict
