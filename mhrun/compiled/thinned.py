"""The Metropolis-Hastings step whose rule thins Poisson arrivals, as one compiled loop."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mhrun.compiled.loop_inputs import (
    AliasSlots,
    Arguments,
    BlockLoop,
    ControlArrays,
    Points,
    Range,
    Stream,
    record_arrays,
    record_of,
)
from mhrun.compiled.part_forms import forms_of
from mhrun.kernels import MetropolisHastings
from mhrun.native import (
    THINNED,
    Draw,
    NativeBounds,
    NativeProposal,
    NativeThinning,
    Piece,
    StepControls,
    native_form,
    piece,
    piece_once,
)
from mhrun.native.forms import ROUNDING, SLACK
from mhrun.native.maths import log_64
from mhrun.native.philox import ACCEPT, fill_arrivals, uniform
from mhrun.target import Target
from mhrun.types import Controls, Record, State

u64 = np.uint64
_TILE = 64  # arrivals held at once


class ThinningSettings(NamedTuple):
    """Where arrivals come from, and what the rule does with them; see `NativeThinning`."""

    table: AliasSlots
    lifts: Any
    only_lowers: Any
    most: Any  # arrivals expected in a step that is not decided on all data


class ThinnedRecord(NamedTuple):
    """The record of each step, (C, K, ...)."""

    theta: Any
    accepted: Any
    log_ratio: Any
    log_ratio_var: Any
    batch_size: Any
    diverging: Any
    violations: Any


class ThinnedLoop(BlockLoop):
    """See `MetropolisHastings`: the same step and the same random numbers, compiled."""

    def __init__(
        self,
        model: NativeBounds,
        proposal: NativeProposal,
        thinning: NativeThinning,
        target: Target,
        key: int,
        threads: int,
    ) -> None:
        self._model, self._proposal, self._thinning = model, proposal, thinning
        moving = (proposal.propose, proposal.log_ratio)
        bounded = (model.log_prior, model.width, model.terms, model.size, model.known, model.total)
        pieces = (*moving, thinning.share, *bounded)
        super().__init__(piece_once(_loop, *pieces), target, key, threads)

    @classmethod
    def of(cls, kernel: MetropolisHastings, target: Target, key: int, threads: int) -> ThinnedLoop | None:
        """Return the loop of a kernel, or None if one of its parts has no compiled form."""
        forms, thins = forms_of(kernel), native_form(kernel.rule, "thinning", "decide", "share")
        if forms is None or thins is None or forms.pairing.mode != THINNED:
            return None
        model = target.bounded.native()
        return None if model is None else cls(model, forms.proposal, thins(), target, key, threads)

    @cached_property
    def _table(self) -> AliasSlots:
        return AliasSlots.of(self._target)

    def prepare(self, state: State, first_step: int, controls: Controls) -> Arguments:
        """Return the arguments for the K steps from `first_step` on; every field of `controls` is (K, C)."""
        thinning, points = self._thinning, Points.of(state)
        most = min(thinning.at_most, self._target.n)
        return Arguments(
            stream=Stream.of(self._key, first_step),
            settings=ThinningSettings(self._table, thinning.lifts, thinning.only_lowers, most),
            chains=points,
            schedule=ControlArrays.of(controls, self._target),
            args=(self._model.args, self._proposal.args, thinning.args),
            out=record_arrays(ThinnedRecord, controls, points.theta.shape[1]),
        )

    def finish(self, arguments: Arguments) -> tuple[State, Record]:
        """Return the state after the steps and their record, from the arguments of the finished loop."""
        target, record = self._target, record_of(arguments.out, n_lik_overhead=0, n_grad=0)
        size = record["batch_size"].astype(np.int64)
        # Only a step that is decided on all data has no variance.
        decided_on_all = record["log_ratio_var"] == 0
        record["n_lik"] = np.where(decided_on_all, 2 * target.n, target.differences.per_term * size)
        return State(arguments.chains.evaluation(), {}), record


@piece
def _suspects(count: Any, values: Any, sizes: Any, beta: Any, span: Any) -> Any:
    """Return how many terms (count,) are larger than their bounds, by whatever little."""
    found = 0
    for i in range(count):
        found += abs(beta * values[i]) > span * sizes[i] * (1 + SLACK)
    return found


@piece
def _steps(count: Any, values: Any, sizes: Any, marks: Any, beta: Any, span: Any, a: Any, lifts: Any) -> None:
    """Replace terms (count,) by log(g / f) of the arrivals that are kept and 0 of others."""
    for i in range(count):  # without a branch, so that it runs in vector lanes
        b = span * sizes[i]
        t = beta * values[i]
        bounded = min(max(t, -b), b)
        kappa = a * b + (0.5 * (b - abs(bounded)) if lifts else 0.0)
        f, g = max(-bounded, 0.0) + kappa, max(bounded, 0.0) + kappa
        kept = marks[i] * (1 + a) * b < f
        step = log_64(g / f if kept else 1.0)
        values[i] = step if t == t else np.nan


def _loop(
    propose: Piece,
    proposal_ratio: Piece,
    share: Piece,
    log_prior: Piece,
    width: Piece,
    terms: Piece,
    size_of: Piece,
    known_part: Piece,
    total: Piece,
) -> Piece:
    def loop(chains: Range, steps: Range, work: Any, arguments: Any) -> None:
        # Tuples are unpacked here, once: in the loops each unpacked array costs a reference count.
        key, first_step = arguments.stream
        table, lifts, only_lowers, most = arguments.settings
        n, slots, total_weight = table
        theta, kept_prior = arguments.chains
        step_size, noise_temperature, scale, prior_power = arguments.schedule
        model, proposal, rule = arguments.args
        out_theta, out_accepted, out_log_ratio, out_var, out_size, out_diverging, out_violations = (
            arguments.out
        )
        dim = theta.shape[1]
        index, marks, values = np.empty(_TILE, np.int64), np.empty(_TILE), np.empty(_TILE)
        coins, gaps, sizes = np.empty(_TILE), np.empty(_TILE), np.empty(_TILE)
        candidate = np.empty(dim)
        for c in range(chains.first, chains.last):
            current = theta[c]
            for k in range(steps.first, steps.last):
                draw = Draw(key, first_step + u64(k), u64(c))
                controls = StepControls(step_size[k, c], noise_temperature[k, c])
                propose(proposal, current, controls, draw, candidate)
                prior = log_prior(model, candidate)
                offset = prior_power[k, c] * (prior - kept_prior[c])
                offset += proposal_ratio(proposal, current, candidate)
                beta = scale[k, c] / np.float64(n)
                sure = known_part(model, current, candidate)
                log_ratio = offset + beta * sure
                span = beta * width(model, current, candidate)
                whole_bound = span * total_weight
                a = share(rule, whole_bound)
                rate = (1 + a) * whole_bound
                log_u = math.log(uniform(ACCEPT, draw))
                size, noise, wrong = np.int64(0), np.nan, 0
                if log_ratio > -np.inf and not rate <= most:
                    log_ratio += beta * (total(model, candidate) - total(model, current) - sure)
                    size, noise = np.int64(n), 0.0
                elif log_ratio > -np.inf and rate > 0 and not (only_lowers and log_u >= log_ratio):
                    time, j, going = 0.0, 0, True
                    while going:
                        rate_left = rate - time
                        drawn = np.int64(min(np.float64(_TILE), rate_left + 2 * math.sqrt(rate_left) + 2))
                        fill_arrivals(j, drawn, n, draw, index, coins, gaps, marks)
                        j += int(drawn)
                        count = 0
                        for i in range(drawn):
                            time += gaps[i]
                            if not time <= rate:
                                going = False
                                break
                            count += 1
                        # Loads in loops of their own, without branches: they wait for memory together.
                        for i in range(count):
                            slot = index[i]
                            alternative = np.int64(slots[slot, 1])
                            index[i] = slot if coins[i] < slots[slot, 0] else alternative
                        for i in range(count):
                            sizes[i] = slots[index[i], 2]
                        terms(model, index, count, current, candidate, values)
                        size += count
                        if only_lowers:
                            for i in range(count):
                                b = span * sizes[i]
                                t = beta * values[i]
                                if abs(t) > b * (1 + SLACK):
                                    rounding = beta * ROUNDING * size_of(model, index[i], current, candidate)
                                    wrong += abs(t) > b * (1 + SLACK) + rounding or abs(t) == np.inf
                                if t != t or marks[i] * b < min(-t, b):
                                    log_ratio = -np.inf if t == t else np.nan
                                    size -= count - 1 - i  # later ones need not be read
                                    going = False
                                    break
                        else:
                            if _suspects(count, values, sizes, beta, span) > 0:
                                for i in range(count):
                                    rounding = beta * ROUNDING * size_of(model, index[i], current, candidate)
                                    b = span * sizes[i]
                                    t = abs(beta * values[i])
                                    wrong += t > b * (1 + SLACK) + rounding or t == np.inf
                            _steps(count, values, sizes, marks, beta, span, a, lifts)
                            for i in range(count):
                                log_ratio += values[i]
                accept = log_u < log_ratio
                if accept:
                    kept_prior[c] = prior
                    for d in range(dim):
                        theta[c, d] = candidate[d]
                for d in range(dim):
                    out_theta[c, k, d] = theta[c, d]
                out_accepted[c, k] = accept
                out_log_ratio[c, k] = log_ratio
                out_var[c, k] = noise
                out_size[c, k] = size
                out_diverging[c, k] = log_ratio != log_ratio
                out_violations[c, k] = wrong

    return loop
