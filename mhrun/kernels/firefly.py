"""Firefly Monte Carlo: exact Metropolis-Hastings on the data whose auxiliary variable is 1."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.kernels.metropolis_hastings import MetropolisHastings, decision
from mhrun.pairing.full import Full
from mhrun.parts import Proposal
from mhrun.random import Draws, Purpose
from mhrun.rules.metropolis import Metropolis
from mhrun.target import Target
from mhrun.target.lower_bound import LowerBound
from mhrun.types import Contest, Controls, Difference, Info, State, choose

GAPS = "gaps"  # name in `State.aux`
DARK = -1.0  # in place of the gap of a dark datum, which is not known
LEAST = 1e-13  # gaps are at least this: the odds of a datum are positive
_VALUES = 1 << 20  # chains times data of a part of a pass


class GivenBright(Metropolis):
    """Metropolis's rule for theta given the auxiliary variables: exact, however few data are bright."""

    exact = True


class Firefly(MetropolisHastings):
    """Firefly Monte Carlo (Maclaurin & Adams 2015), on theta and one bit z_i for each datum:

        p(theta, z) = prior(theta) prod_i [ (L_i - B_i)^z_i B_i^(1 - z_i) ],   0 < B_i <= L_i = p(x_i | theta)^(1/T).

    The sum over z is the target. B_i is a lower bound whose logarithm is quadratic in theta, so that the product of all
    B_i is known from stored sums; L_i is evaluated only for the bright data, those with z_i = 1. A step, with
    w_i = (L_i - B_i) / B_i:

    1. Every bright datum goes dark with probability min(1, q / w_i). A share q of the dark data, drawn at random, is
       evaluated; each goes bright with probability min(1, w_i / q). This leaves p(z | theta) invariant.
    2. theta' is proposed, and accepted with probability min(1, r),

        log r = offset + sum_i log B_i(theta') / B_i(theta) + sum over bright i of log w_i(theta') / w_i(theta).

    The first step draws all z_i from p(z | theta), which reads all data. `State.aux` holds log L_i - log B_i of the
    bright data (n numbers a chain): each is evaluated once in a step, at theta', and each dark datum that is tried at
    theta. That counts as two evaluations, of the log-likelihood and of the bound.

    The target needs a lower bound as its surrogate: ``lower_bound``, which touches at the posterior mode (MAP-tuned),
    or ``lower_bound_untuned``. A bound that exceeds its likelihood is counted as a violation, and the run stops.

    Args:
        proposal: draws a candidate; without gradients.
        share: q, the share of the dark data that a step evaluates, in (0, 1].

    Raises:
        Refusal: `share` outside of (0, 1], or an object that is not a proposal.
    """  # noqa: D415

    def __init__(self, proposal: Proposal, share: float = 0.01) -> None:
        super().__init__(proposal, Full(), GivenBright())
        if not 0 < share <= 1:
            raise Refusal(f"share = {share:g} must be above 0 and at most 1.")
        self.share = float(share)

    @property
    def is_sequential(self) -> bool:
        """True: the number of data read depends on the auxiliary variables."""
        return True

    def refuses(self, target: Target) -> str | None:
        """Return why the proposal and the target are incompatible, or None."""
        if not isinstance(target.surrogate, LowerBound):
            return (
                "Firefly needs lower bounds of the log-likelihood; choose surrogate=lower_bound or lower_bound_untuned "
                "(target.surrogate in a configuration)."
            )
        if self.proposal.gradients:
            return (
                f"{type(self.proposal).__name__} needs gradients, which Firefly does not provide; choose a proposal "
                "without gradients."
            )
        if target.common_batch:
            return "the bright data cannot be common to all chains: common_batch=false."
        return super().refuses(target)

    def refuses_ladder(self) -> str | None:
        """Return why it cannot move the rungs of a ladder: an exchange would leave the auxiliary variables behind."""
        return "Firefly keeps auxiliary variables, which an exchange would not carry; choose another kernel."

    def rounds(self, target: Target) -> int:
        """Return a guess: brightening, darkening and the move, each with its own rows."""
        return 8

    def reads(self, target: Target) -> int:
        """Return a guess: the share of the dark data, and as many bright ones."""
        return max(1, math.ceil(2 * self.share * target.n))

    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Return the initial state at theta (C, D), with the gaps of all data; the first step draws z."""
        part = max(1, _VALUES // len(theta))
        gaps = [
            _bounds(target).gaps(theta, target.data.part(first, min(first + part, target.n)))[0]
            for first in range(0, target.n, part)
        ]
        return State(target.prior(theta), {GAPS: torch.cat(gaps, 1).clamp_min(LEAST)})

    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Move every chain by one step."""
        origin, temperature = state.evaluation, controls.temperature.double()
        gaps, n_tried, violations = self._redrawn(target, state, temperature, draws)
        rows, place, index, is_listed = _listed(gaps != DARK)

        theta = self.proposal.sample(origin, controls, draws)
        candidate = target.prior(theta)
        new_gaps, wrong = _gaps(target, theta, index, is_listed)
        change = _log_odds(new_gaps, temperature) - _log_odds(gaps.gather(1, index), temperature)
        bound = (_bounds(target).total(theta) - _bounds(target).total(origin.theta)) / temperature
        scale = target.n / temperature
        offset = target.prior_power(controls.temperature) * (candidate.log_prior - origin.log_prior)
        if (densities := self.proposal.log_density_ratio(origin, candidate, controls)) is not None:
            offset = offset + densities
        mean = (bound + torch.where(is_listed, change, 0.0).sum(1)) / scale
        bright, unknown = is_listed.sum(1), torch.full_like(mean, torch.nan)
        contest = Contest.of(Difference(mean, unknown, bright, unknown), scale, offset)
        verdict = decision(self.rule, contest, draws)

        after = torch.where(verdict.accepted[rows], new_gaps[rows, place], gaps[rows, index[rows, place]])
        gaps = gaps.index_put((rows, index[rows, place]), after)
        n_read = bright + n_tried
        info = Info(
            accepted=verdict.accepted,
            log_ratio=verdict.log_ratio,
            log_ratio_var=unknown,
            batch_size=n_read,
            n_lik=2 * n_read,
            n_lik_overhead=torch.zeros_like(n_read),
            n_grad=torch.zeros_like(n_read),
            diverging=verdict.log_ratio.isnan(),
            violations=violations + wrong,
        )
        return State(choose(verdict.accepted, candidate, origin, on_host=draws.on_host), {GAPS: gaps}), info

    def _redrawn(
        self, target: Target, state: State, temperature: Tensor, draws: Draws
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gaps (C, n) after z has changed, how many data were evaluated for it, and violations, (C,)."""
        gaps, theta = state.aux[GAPS], state.evaluation.theta
        n, none = target.n, torch.zeros(len(gaps), dtype=torch.int64, device=gaps.device)
        if draws.before(1):  # from p(z | theta): all gaps are known
            everything = torch.arange(n, device=gaps.device).expand(len(gaps), -1)
            dark = (
                draws.uniforms_at(Purpose.ARRIVALS, everything, use=1) < (-gaps / temperature[:, None]).exp()
            )
            return torch.where(dark, DARK, gaps), none + n, none
        rows, place, index, is_listed = _listed(gaps != DARK)
        odds = _log_odds(gaps.gather(1, index), temperature)
        uniform = draws.uniforms_at(Purpose.ARRIVALS, index, use=1)
        darkens = is_listed & (uniform.log() < math.log(self.share) - odds)

        at, coin = self._chosen(n, draws)
        tries = (at < n) & (gaps.gather(1, at.clamp_max(n - 1)) == DARK)
        at_rows, at_place, at_index, at_there = _listed_of(tries, at)
        tried_gaps, wrong = _gaps(target, theta, at_index, at_there)
        coin = coin[at_rows, _position(tries)]
        brightens = coin.log() < _log_odds(tried_gaps, temperature)[at_rows, at_place] - math.log(self.share)

        listed_gaps = gaps[rows, index[rows, place]]
        gaps = gaps.index_put(
            (rows, index[rows, place]), torch.where(darkens[rows, place], DARK, listed_gaps)
        )
        bright = torch.where(brightens, tried_gaps[at_rows, at_place], DARK)
        gaps = gaps.index_put((at_rows, at_index[at_rows, at_place]), bright)
        return gaps, tries.sum(1), wrong

    def _chosen(self, n: int, draws: Draws) -> tuple[Tensor, Tensor]:
        """Return places (C, k), ascending, and uniforms (C, k): each place below n is there with probability q.

        Gaps between successes of independent trials are geometric: floor(e / -log(1 - q)) + 1 of an exponential e.
        """
        rate = math.inf if self.share == 1 else -math.log1p(-self.share)
        mean = n * self.share
        start, stop = 0, 1 << math.ceil(math.log2(mean + 6 * mean**0.5 + 16))
        places, uniforms = list[Tensor](), list[Tensor]()
        last = torch.full((draws.chains, 1), -1, dtype=torch.int64, device=draws.device)
        while bool((last < n).any()):
            rows = None if start == 0 else torch.arange(draws.chains, device=draws.device)
            _, _, gap, uniform = draws.arrivals(n, start, stop, rows)
            chosen = last + ((gap / rate).floor().long() + 1).cumsum(1)
            places.append(chosen)
            uniforms.append(uniform)
            last = chosen[:, -1:]
            start, stop = stop, 2 * stop
        return torch.cat(places, 1), torch.cat(uniforms, 1)


def _bounds(target: Target) -> LowerBound:
    assert isinstance(target.surrogate, LowerBound)
    return target.surrogate


def _log_odds(gaps: Tensor, temperature: Tensor) -> Tensor:
    """Return log((L - B) / B) = log(exp(gap / T) - 1), (C, k); of a dark datum some number."""
    x = gaps.clamp_min(LEAST) / temperature[:, None]
    return torch.where(x > 30.0, x, x.clamp_max(30.0).expm1().log())


def _gaps(target: Target, theta: Tensor, index: Tensor, is_listed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gaps of the data `index` (C, k) at theta (C, D), and how many are negative where `is_listed`, (C,)."""
    gaps, rounding = _bounds(target).gaps(theta, target.data.rows(index))
    # Where a likelihood is 0, rounding is infinite
    wrong = is_listed & ((gaps < -rounding) | gaps.isneginf())
    return gaps.clamp_min(LEAST), wrong.sum(1)


def _position(mask: Tensor) -> Tensor:
    """Return the column of each True element of a mask (C, k), row by row."""
    return mask.nonzero()[:, 1]


def _listed(mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the columns of the True elements of a mask (C, n) as lists of one length.

    Returns:
        row and place in the list of each element (E,); the lists (C, k) and which of their elements are there (C, k).
    """
    return _listed_of(mask, torch.arange(mask.shape[1], device=mask.device).expand_as(mask))


def _listed_of(mask: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return `values` (C, n) where the mask is True, as `_listed` does."""
    rows, columns = mask.nonzero().unbind(1)
    count = mask.sum(1)
    place = torch.arange(len(rows), device=mask.device) - (count.cumsum(0) - count)[rows]
    longest = max(1, int(count.max()))
    lists = torch.zeros(len(mask), longest, dtype=torch.int64, device=mask.device)
    lists[rows, place] = values[rows, columns]
    return rows, place, lists, torch.arange(longest, device=mask.device) < count[:, None]
