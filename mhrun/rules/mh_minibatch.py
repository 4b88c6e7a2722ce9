"""MHminibatch: Barker's rule from a minibatch, whose noise becomes part of the decision's randomness."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal, check_choice
from mhrun.native import NativeTest, piece
from mhrun.native.philox import ACCEPT as ACCEPT_DRAW
from mhrun.native.philox import USE, normals, uniform
from mhrun.parts import SUPPLY, Rule
from mhrun.random import Draws, Purpose
from mhrun.rules.correction import inverse, inverted, table
from mhrun.rules.growth import (
    ACCEPT,
    REJECT,
    UNDECIDED,
    Moments,
    Stages,
    geometric_steps,
    grow,
    read_pilot,
    steps_of,
)
from mhrun.types import Contest, Verdict

u64 = np.uint64


class _Noise(NamedTuple):
    """Random numbers of decisions, each (C,)."""

    normal: Tensor  # standard normal, for X_nc
    corrected: Tensor  # X_corr
    logistic: Tensor  # for the test of all data

    def of(self, rows: Tensor) -> _Noise:
        """Return those of some chains."""
        return _Noise(*(numbers[rows] for numbers in self))


class MHMinibatch(Rule):
    """Accept iff D + X_nc + X_corr > 0, with D estimated to sufficient accuracy (Seita et al. 2017, Algorithm 1).

    D is the log-ratio estimated from b data, with variance s^2. Once s^2 < v, adding X_nc ~ N(0, v - s^2) raises the
    variance of the noise to v = sigma^2, and adding X_corr makes it logistic (`mhrun.rules.correction`). If D is
    normal, the step accepts with Barker's probability 1 / (1 + exp(-log r)). If all n data are read, the exact Barker
    test decides. The design `stop` determines b and s^2:

    - ``pilot``: the variance of a pilot minibatch fixes b, so that the expected s^2 is `noise_share` v. D is the mean
      of b fresh data; s^2 combines their variance with weight w and the pilot's with weight 1 - w. b does not depend on
      the noise of D, so that D is unbiased. The third cumulant of D + X_nc is that of D minus 3 cov(D, s^2), and
      w = (1 + b/n) / 3 makes it 0 (`skew_corrected`). The remaining errors are of order 1 / b, and of order
      (2 + excess kurtosis of the terms) / `pilot` because b is planned from an estimate: a pilot of 10 data with heavy
      tails is too small. With w = 0 the skewness of D remains.
    - ``sequential``: m more data are read until s^2 < v, the paper's Algorithm 1. It stops where s^2 happens to be
      small, and s^2 and D are correlated if the terms are skewed. With g the skewness of the terms / sqrt(b), D has
      the bias -g s^3 / v, and the error of the acceptance probability is up to 0.21 |g|, or 0.04 at a skewness of 1.5
      and b = 72.

    With `finite` the variance of a mean is S^2 / b (1 - b/n), S^2 with divisor b - 1, as for data drawn without
    replacement.

    Args:
        m: first minibatch size and increment; with a pilot, the smallest b.
        sigma: total standard deviation of the noise of D + X_nc; None: 1, or that of `variance`. Above about 1.67 with
            ``nnls`` and 1.12 with ``paper`` the table is too inaccurate.
        density: density of X_corr: ``nnls`` (cdf error 4e-6), ``paper`` (9e-4) or ``series`` (Luo et al. 2020,
            equation 9; see `mhrun.rules.series` for its errors).
        lam: lambda of the paper's regularised least squares (None: 10), or bandwidth of the series (None: infinity).
        half_width_steps: half width of the paper's grid in steps; None for 4000.
        five_sd: decide by the sign of D when |D| > 5 s: ``off`` (the paper's text), ``undecided`` (only while s^2 >= v,
            where it saves data) or ``always`` (the authors' code). The last two remove randomness of Barker's rule,
            which decides against the sign of the log-ratio with probability 1 / (1 + exp(|log r|)): up to 0.7 % at v =
            1, where ``undecided`` needs |D| > 5. ``always`` applies at smaller |D| and has larger errors.
        finite: use the variance of data drawn without replacement; False, as in the paper: S^2 / b with divisor b.
        at_end: decision when all data are read: ``barker`` (exact) or ``sign`` (the sign of D; the authors' code).
        prior: False drops the contest's offset (prior and proposal densities) from D, so that the stationary
            distribution has a flat prior, as in the authors' code, whose proposal is symmetric.
        terms: number of terms of the series; None for 3.
        variance: sigma^2, in place of sigma.
        stop: the design, ``pilot`` or ``sequential``.
        pilot: size of the pilot minibatch; None for m.
        noise_share: expected s^2 as a share of v, in (0, 1); with a pilot.
        skew_corrected: False for w = 0; with a pilot.

    Raises:
        Refusal: an invalid setting.
    """

    wants = SUPPLY
    corrects_noise = True
    barker = True

    def __init__(
        self,
        m: int,
        sigma: float | None = None,
        density: Literal["paper", "nnls", "series"] = "nnls",
        lam: float | None = None,
        half_width_steps: int | None = None,
        five_sd: Literal["off", "undecided", "always"] = "off",
        finite: bool = True,
        at_end: Literal["barker", "sign"] = "barker",
        prior: bool = True,
        terms: int | None = None,
        variance: float | None = None,
        stop: Literal["pilot", "sequential"] = "pilot",
        pilot: int | None = None,
        noise_share: float = 0.8,
        skew_corrected: bool = True,
    ) -> None:
        _check_settings(m, five_sd, at_end, stop, pilot, noise_share)
        self.m = m
        if sigma is not None and variance is not None:
            raise Refusal(
                f"sigma = {sigma:g} and variance = {variance:g} both set the noise; leave one out, or set it to null."
            )
        sigma = 1.0 if sigma is None else sigma
        self.variance = math.copysign(sigma**2, sigma) if variance is None else variance
        self.five_sd = five_sd
        self.finite = finite
        self.at_end = at_end
        self.prior = prior
        self.stop = stop
        self.pilot = m if pilot is None else pilot
        self.noise_share = noise_share
        self.skew_corrected = skew_corrected
        self._table = table(density, self.variance, lam, half_width_steps, terms)

    @property
    def first_batch(self) -> int:
        """Return m."""
        return self.m

    @property
    def skew_limit(self) -> float:
        """The (skewness of the terms) / sqrt(b) above which the error of the acceptance probability may exceed 0.01.

        D + X_nc + X_corr has a logistic distribution F apart from a bias of D and a third cumulant. With the sequential
        design these are -g and -2g at s^2 = v = 1 and skewness g. At log r = 0, where both have the largest effect,
        they shift the probability by F'(0) g = g / 4 and by 2g / 48. With a pilot they vanish to first order; that
        limit was measured on gamma terms, where the error is 0.003 at g = 0.2, 0.008 at 0.37 and 0.014 at 0.5.
        """
        return 0.01 / (1 / 4 - 2 / 48) if self.stop == "sequential" else 0.4

    @property
    def skew_remedy(self) -> str:
        """The advice for a skewness above `skew_limit`."""
        if self.stop == "sequential":
            return "Choose stop=pilot, or a larger m."
        return "Choose a smaller noise_share or sigma, or a larger m and pilot."

    def sizes(self, n: int) -> tuple[tuple[int, ...], int]:
        """Return the sizes of the stages and of the pilot; a single stage of all data if n is too small for both."""
        if self.stop == "sequential":
            return steps_of(n, min(self.m, n)), 0
        if self.pilot + self.m >= n:
            return (n,), 0
        return geometric_steps(n - self.pilot, self.m), self.pilot

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Read data until every chain is decided."""
        supply, scale = contest.supply, contest.scale
        assert supply is not None
        n, chains, device = supply.n, len(scale), scale.device
        offset = contest.offset if self.prior else torch.zeros_like(contest.offset)
        noise = _Noise(
            normal=draws.normal(Purpose.ACCEPT, 1)[:, 0],
            corrected=inverse(draws.uniform(Purpose.ACCEPT, use=1), self._table),
            logistic=draws.uniform(Purpose.ACCEPT, use=2).logit(),
        )
        inverse_n = 1 / n if self.finite else 0.0
        sizes, overhead = self.sizes(n)
        first = read_pilot(supply, overhead, chains, device) if overhead else None
        least = torch.zeros_like(scale)
        if first is not None:  # chains that need more than n data, or have NaN, decide at the last stage
            size_needed = 1 / (self.noise_share * self.variance / (scale**2 * first.variance) + inverse_n)
            least = torch.where(size_needed <= sizes[-1], size_needed, sizes[-1])

        def judge(stages: Stages) -> Tensor:
            rows, size = stages.rows[:, None], stages.size
            own = noise.of(rows)
            d = offset[rows] + scale[rows] * stages.mean
            var = self._term_variance(stages, first, inverse_n)
            s2 = scale[rows] ** 2 * var / size * (1 - size * inverse_n)
            verdict = self._verdict(d, s2, size >= least[rows], own)
            end = d + own.logistic > 0 if self.at_end == "barker" else d > 0
            last = (size == n) & ((verdict == UNDECIDED) | (self.at_end == "barker"))
            return torch.where(last, end.to(torch.int8), verdict)

        return grow(supply, sizes, judge, chains, device, first).verdict(contest, n)

    def _term_variance(self, stages: Stages, first: Moments | None, inverse_n: float) -> Tensor:
        """Return the estimated variance of the terms of each chain at each stage, (R, L).

        Args:
            stages: statistics of the terms.
            first: those of the pilot, if there is one.
            inverse_n: 1 / n, or 0 if not `finite`.
        """
        size, var = stages.size, stages.var
        if self.finite or first is not None:
            var = var * size / (size - 1).clamp_min(1)
        if first is not None:
            own_weight = own_share(size * inverse_n) if self.skew_corrected else 0.0
            var = own_weight * var + (1 - own_weight) * first.variance[stages.rows[:, None]]
        return var

    def _verdict(self, d: Tensor, s2: Tensor, enough: Tensor, noise: _Noise) -> Tensor:
        """Return the decisions on D and its variance s^2, both (R, L), where not all data are read."""
        v = self.variance
        known = (s2 < v) & enough
        accepts = d + ((v - s2).clamp_min(0.0).sqrt() * noise.normal + noise.corrected) > 0
        verdict = torch.where(known, accepts.to(torch.int8), UNDECIDED)
        if self.five_sd == "off":
            return verdict
        far = d.abs() > 5 * s2.clamp_min(0.0).sqrt()
        if self.five_sd == "undecided":
            far &= ~known
        return torch.where(far, torch.where(d > 0, ACCEPT, REJECT).to(torch.int8), verdict)

    def sequential(self, n: int) -> NativeTest:
        """Return the pieces of the compiled loop."""
        sizes, overhead = self.sizes(n)
        quantiles = (self._table.probabilities.numpy(), self._table.points.numpy())  # of X_corr
        five_sd = ("off", "undecided", "always").index(self.five_sd)
        args = (float(self.variance), five_sd, self.finite, self.at_end == "barker", *quantiles, self.prior)
        if not overhead:
            return NativeTest(args, sizes, False, _begin, _judge)
        planned = (
            np.asarray(sizes, np.float64),
            float(self.noise_share * self.variance),
            self.skew_corrected,
        )
        return NativeTest((*args, *planned), sizes, False, _begin_pilot, _judge_pilot, overhead)


def _check_settings(
    m: int, five_sd: str, at_end: str, stop: str, pilot: int | None, noise_share: float
) -> None:
    """Refuse sizes without a variance, unknown choices and settings that the design does not have.

    Raises:
        Refusal: an invalid setting.
    """
    if m < 2:
        raise Refusal(f"m = {m} data have no variance; choose m >= 2.")
    for name, value, choices in (
        ("five_sd", five_sd, ("off", "undecided", "always")),
        ("at_end", at_end, ("barker", "sign")),
        ("stop", stop, ("pilot", "sequential")),
    ):
        check_choice(name, value, choices)
    if pilot is not None and pilot < 2:
        raise Refusal(f"pilot = {pilot} must be at least 2: the variance is estimated from that many data.")
    if pilot is not None and stop != "pilot":
        raise Refusal(f"stop = '{stop}' has no pilot; leave out pilot = {pilot}, or choose stop = 'pilot'.")
    if stop == "pilot" and five_sd != "off":
        raise Refusal(f"five_sd = '{five_sd}' needs stop = 'sequential'; with a pilot it must be 'off'.")
    if not 0 < noise_share < 1:
        raise Refusal(f"noise_share = {noise_share:g} must lie between 0 and 1.")


@piece
def own_share(share: Any) -> Any:
    """Return w = (1 + b/n) / 3, the weight in s^2 of the variance of D's data; `share` is b/n.

    Let K be the third cumulant of the terms (k-statistics of all n; Fisher 1929). For data drawn without replacement,
    the third cumulant of D is scale^3 K (1/b - 1/n) (1/b - 2/n). The covariances of D with its own and with the pilot's
    estimate of s^2 are scale^3 K (1/b - 1/n) times (1/b - 1/n) and -1/n. With this w, three times the covariance of D
    and s^2 equals the third cumulant.
    """
    return (1.0 + share) / 3.0


@piece
def _noise(args: Any, draw: Any) -> Any:
    """Return the random numbers of a decision: a normal one, X_corr, and a logistic one for all data."""
    normal = normals(u64(0), ACCEPT_DRAW, draw)[0]
    corrected = inverted(uniform(ACCEPT_DRAW + USE, draw), args[4], args[5])
    w = uniform(ACCEPT_DRAW + USE + USE, draw)
    return normal, corrected, math.log(w) - math.log1p(-w)


@piece
def _verdict(args: Any, params: Any, n: Any, size: Any, d: Any, s2: Any) -> Any:
    """Return the verdict from D and its variance s^2, of `size` data."""
    v, five_sd, barker = args[0], args[1], args[3]
    verdict = UNDECIDED
    if s2 < v:
        verdict = ACCEPT if d + math.sqrt(v - s2) * params[0] + params[1] > 0 else REJECT
    if (five_sd == 2 or (five_sd == 1 and not s2 < v)) and abs(d) > 5 * math.sqrt(s2):
        verdict = ACCEPT if d > 0 else REJECT
    if size == n and barker:
        verdict = ACCEPT if d + params[2] > 0 else REJECT
    elif size == n and verdict == UNDECIDED:
        verdict = ACCEPT if d > 0 else REJECT
    return verdict


@piece
def _begin(args: Any, test: Any, seen: Any, draw: Any) -> Any:
    normal, corrected, logistic = _noise(args, draw)
    return normal, corrected, logistic, 0


@piece
def _judge(args: Any, params: Any, test: Any, seen: Any) -> Any:
    finite, with_offset = args[2], args[6]
    n, size, scale = test.n, seen.size, test.scale
    d = scale * seen.mean + (test.offset if with_offset else 0.0)
    s2 = scale * scale * seen.var / size
    if finite:
        s2 *= size / max(size - 1, 1) * (1.0 - size / n)
    return _verdict(args, params, n, size, d, s2)


@piece
def _begin_pilot(args: Any, test: Any, seen: Any, draw: Any) -> Any:
    finite, sizes, planned = args[2], args[7], args[8]
    normal, corrected, logistic = _noise(args, draw)
    size_needed = 1.0 / (planned / (test.scale * test.scale * seen.var) + (1.0 / test.n if finite else 0.0))
    last = len(sizes) - 1
    stage = last  # if more than n data are needed, or `size_needed` is NaN
    if size_needed <= sizes[last]:
        stage = 0
        while sizes[stage] < size_needed:
            stage += 1
    return normal, corrected, logistic, stage, seen.var


@piece
def _judge_pilot(args: Any, params: Any, test: Any, seen: Any) -> Any:
    finite, with_offset, skew_corrected = args[2], args[6], args[9]
    n, size, scale = test.n, seen.size, test.scale
    d = scale * seen.mean + (test.offset if with_offset else 0.0)
    share_read = size / n if finite else 0.0
    own_weight = own_share(share_read) if skew_corrected else 0.0
    own, of_pilot = seen.var * size / max(size - 1, 1), params[4]
    var = own_weight * own + (1.0 - own_weight) * of_pilot
    return _verdict(args, params, n, size, d, scale * scale * var / size * (1.0 - share_read))
