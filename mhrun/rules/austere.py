"""AustereMH: the Metropolis-Hastings decision as a sequence of t-tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from scipy import special
from torch import Tensor

from mhrun.errors import Refusal, check_choice
from mhrun.native import NativeTest, piece
from mhrun.native.philox import ACCEPT as ACCEPT_DRAW
from mhrun.native.philox import uniform
from mhrun.parts import SUPPLY, Rule
from mhrun.random import Draws, Purpose
from mhrun.rules.austere_design import (
    EPSILONS,
    SIZES,
    Design,
    Designs,
    acceptance_error,
    average,
    conservative,
    profile,
)
from mhrun.rules.growth import ACCEPT, REJECT, UNDECIDED, Stages, grow, steps_of
from mhrun.types import Contest, Supply, Verdict

_GRID = 25  # values of mu_std at which the error of a design is computed


class Austere(Rule):
    """Accept iff the mean term is above mu0 = (log u - offset) / scale, by t-tests (Korattikara et al. 2014).

    Each stage reads m more data and computes the one-sided p-value of the mean against mu0. The test stops when the
    p-value is below epsilon, or when all n data are read, where the decision is exact. The design (m, epsilon) is given
    or chosen:

    - ``conservative``: chosen once, with the least expected number of data for a mean at mu0 among the designs whose
      decision error is below `bound` (their equation 8; AustereMH(C) of Seita et al. 2017);
    - ``average``: chosen once, with the least number of data among the designs whose error of the acceptance
      probability is below `bound` on average over the moves of a trial run (their equation 7);
    - ``per_step``: chosen for each test from the mean and the variance of all terms. This costs a pass over all data,
      which the papers do not count (AustereMH(NC)).

    Args:
        m: increment of the minibatch; with design ``given``.
        epsilon: p-value below which the test stops; with design ``given``.
        design: given, conservative, average or per_step.
        bound: bound on the decision error, for a chosen design.
        reach: the largest |mean - mu0| that a per-step design distinguishes, in standard errors of the mean of all
            data.
        trials: with design ``average``, the log-ratio from all data and (n/T) sd / sqrt(n - 1) of each move of a trial
            run, (P, 2); see `mhrun.rules.austere_design.average`.
        ignores_u: drop log u (all but 1/n of it) from mu0 when choosing a per-step design, as in the authors' code.

    Raises:
        Refusal: an invalid setting.
    """

    wants = SUPPLY

    def __init__(
        self,
        m: int | None = None,
        epsilon: float | None = None,
        design: Literal["given", "conservative", "average", "per_step"] = "given",
        bound: float | None = None,
        reach: float = 10.0,
        ignores_u: bool = False,
        trials: Sequence[Sequence[float]] | None = None,
    ) -> None:
        check_choice("design", design, ("given", "conservative", "average", "per_step"))
        if (design == "average") != (trials is not None):
            raise Refusal(
                "trials are for design = 'average', which needs them: moves of a trial run, (P, 2)."
            )
        if design == "given":
            if m is None or epsilon is None:
                raise Refusal("AustereMH needs m and epsilon, or a design that chooses them.")
            if m < 2 or not 0 < epsilon < 0.5:
                raise Refusal(f"m = {m} must be at least 2, and epsilon = {epsilon:g} between 0 and 0.5.")
        elif bound is None or not 0 < bound < 0.5:
            raise Refusal(f"bound = {bound} of the decision's error must lie between 0 and 0.5.")
        elif m is not None or epsilon is not None:
            raise Refusal(f"design = {design} chooses m and epsilon from bound; leave them out.")
        self.design = design
        self.bound = bound
        self.reach = reach
        self.ignores_u = ignores_u
        self.trials = trials
        self._given = None if m is None or epsilon is None else Design(m, epsilon)

    @property
    def first_batch(self) -> int | None:
        """Return m if it is given, None if a design chooses it."""
        return None if self._given is None else self._given.m

    def acceptance_error(self, n: int, noise: float, rate: float) -> float:
        """Return the mean error of the acceptance probability under the design, see `mhrun.parts.Rule`."""
        if self.design == "per_step":
            assert self.bound is not None
            designs = _designs(n, self.reach)
            grid = torch.linspace(0, self.reach, _GRID, dtype=torch.float64)
            error = designs.error(grid, self.bound).cpu().numpy()
            return acceptance_error(grid.numpy(), error, noise, rate)
        fixed = self._given or self._fixed(n)
        return acceptance_error(*_profile(n, fixed), noise, rate)

    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Read data until every chain is decided."""
        supply = contest.supply
        assert supply is not None
        n, chains, device = supply.n, len(contest.scale), contest.scale.device
        log_u = draws.uniform(Purpose.ACCEPT).log()
        threshold = (log_u - contest.offset) / contest.scale
        if self.design == "per_step":
            m, epsilon = self._per_step(contest, supply, threshold, log_u)
            sizes = steps_of(n, min(SIZES[0], n))
            limits = torch.stack([_limits(e, n, sizes[0], device) for e in EPSILONS])
            row = (
                torch.tensor(EPSILONS, dtype=torch.float64, device=device)
                .sub(epsilon[:, None])
                .abs()
                .argmin(1)
            )
        else:
            fixed = self._given or self._fixed(n)
            sizes = steps_of(n, min(fixed.m, n))
            limits = _limits(fixed.epsilon, n, sizes[0], device)[None]
            row = torch.zeros(chains, dtype=torch.int64, device=device)
            m = torch.full((chains,), fixed.m, dtype=torch.int64, device=device)

        def judge(stages: Stages) -> Tensor:
            columns = slice(stages.first - 1, stages.first - 1 + len(stages.size))
            gap = stages.mean - threshold[stages.rows, None]
            # The sample standard deviation, the standard error of the mean, and what all data leave of it.
            spread = stages.var / (stages.size - 1).clamp_min(1) * (1 - (stages.size - 1) / max(n - 1, 1))
            sure = gap.abs() > limits[row[stages.rows], columns] * spread.sqrt()
            ready = (stages.size % m[stages.rows, None] == 0) | (stages.size == n)
            decided = ready & (sure | (stages.size == n))
            return torch.where(decided, torch.where(gap > 0, ACCEPT, REJECT), UNDECIDED).to(torch.int8)

        outcome = grow(supply, sizes, judge, chains, device)
        return outcome.verdict(contest, n)

    def _fixed(self, n: int) -> Design:
        assert self.bound is not None
        if self.trials is None:
            return conservative(n, self.bound)
        return _average(n, self.bound, tuple((float(gain), float(sd)) for gain, sd in self.trials))

    def _per_step(
        self, contest: Contest, supply: Supply, threshold: Tensor, log_u: Tensor
    ) -> tuple[Tensor, Tensor]:
        assert self.bound is not None
        n = supply.n
        mean, var = supply.moments()
        if self.ignores_u:
            threshold = threshold - log_u / contest.scale * (1 - 1 / n)
        mu_std = (mean - threshold) * (n - 1) ** 0.5 / var.sqrt()
        return _designs(n, self.reach).choose(mu_std, self.bound)

    def sequential(self, n: int) -> NativeTest:
        """Return the pieces of the compiled loop."""
        if self.design != "per_step":
            fixed = self._given or self._fixed(n)
            sizes = steps_of(n, min(fixed.m, n))
            limits = _limits(fixed.epsilon, n, sizes[0], torch.device("cpu"))[None].numpy()
            args = (limits, fixed.m, self.ignores_u)
            return NativeTest(args, sizes, False, _begin_fixed, _judge)
        assert self.bound is not None
        sizes = steps_of(n, min(SIZES[0], n))
        limits = torch.stack([_limits(e, n, sizes[0], torch.device("cpu")) for e in EPSILONS]).numpy()
        designs = _designs(n, self.reach)
        error, usage = (table.contiguous().numpy() for table in designs.tables.cpu())
        design_args = (error, usage, designs.sizes.cpu().numpy(), self.reach, self.bound)
        return NativeTest((limits, 0, self.ignores_u, *design_args), sizes, True, _begin_per_step, _judge)


@piece
def _begin_fixed(args: Any, test: Any, seen: Any, draw: Any) -> Any:
    log_u = math.log(uniform(ACCEPT_DRAW, draw))
    return (log_u - test.offset) / test.scale, 0, args[1], 0


@piece
def _begin_per_step(args: Any, test: Any, seen: Any, draw: Any) -> Any:
    error, usage, sizes, reach, bound = args[3], args[4], args[5], args[6], args[7]
    log_u = math.log(uniform(ACCEPT_DRAW, draw))
    threshold = (log_u - test.offset) / test.scale
    aimed = threshold - log_u / test.scale * (1 - 1 / test.n) if args[2] else threshold
    mu_std = abs(seen.mean - aimed) * math.sqrt(test.n - 1) / math.sqrt(seen.var)
    last = error.shape[1] - 1
    # NaN gives no information about the test: assume the worst case, 0.
    place = min(mu_std, reach) * (last / reach) if mu_std == mu_std else 0.0
    low = min(np.int64(place), last - 1)
    share = place - low
    best, least, safest, lowest = -1, np.inf, 0, np.inf
    for d in range(len(sizes)):
        wrong = error[d, low] + share * (error[d, low + 1] - error[d, low])
        needs = usage[d, low] + share * (usage[d, low + 1] - usage[d, low])
        if wrong < bound and needs < least:
            best, least = d, needs
        if wrong < lowest:
            safest, lowest = d, wrong
    if best < 0:
        best = safest
    return threshold, best % len(args[0]), sizes[best], 0


@piece
def _judge(args: Any, params: Any, test: Any, seen: Any) -> Any:
    n, size = test.n, seen.size
    gap = seen.mean - params[0]
    verdict = ACCEPT if gap > 0 else REJECT
    if size < n:
        spread = seen.var / max(size - 1, 1) * (1 - (size - 1) / max(n - 1, 1))
        if size % params[2] != 0 or not abs(gap) > args[0][params[1], seen.stage] * math.sqrt(spread):
            verdict = UNDECIDED
    return verdict


@lru_cache(maxsize=8)
def _profile(n: int, design: Design) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return values of mu_std and the probability of a wrong decision at each."""
    curve = profile(n, *design, np.linspace(0, 10, _GRID))
    return curve.mu_std, curve.error


_average = lru_cache(maxsize=8)(average)


@lru_cache(maxsize=4)
def _designs(n: int, reach: float) -> Designs:
    return Designs.of(n, reach=reach)


@lru_cache(maxsize=32)
def _limits(epsilon: float, n: int, m: int, device: torch.device) -> Tensor:
    """Return the |t| with the one-sided p-value epsilon, at each stage (L,)."""
    freedom = np.maximum(np.asarray(steps_of(n, m), dtype=float) - 1, 1)
    return torch.from_numpy(-special.stdtrit(freedom, epsilon)).to(device)
