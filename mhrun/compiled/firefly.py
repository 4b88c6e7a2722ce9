"""Firefly Monte Carlo as one compiled loop."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from mhrun.compiled.loop import register
from mhrun.compiled.loop_inputs import (
    Arguments,
    BlockLoop,
    ControlArrays,
    Points,
    Range,
    Stream,
    record_arrays,
    record_of,
)
from mhrun.kernels import Firefly
from mhrun.kernels.firefly import DARK, GAPS, LEAST
from mhrun.native import (
    Draw,
    NativeLowerBound,
    NativeProposal,
    Piece,
    StepControls,
    available,
    native_form,
    piece,
    piece_once,
)
from mhrun.native.philox import ACCEPT, ARRIVALS, USE, arrival, philox, uniform
from mhrun.target import Target
from mhrun.target.lower_bound import LowerBound
from mhrun.types import Controls, Record, State

u64 = np.uint64


class FireflyChains(NamedTuple):
    """The state of the chains, changed in place."""

    points: Points
    gaps: Any  # (C, n)


class FireflyRecord(NamedTuple):
    """The record of each step, (C, K, ...)."""

    theta: Any
    accepted: Any
    log_ratio: Any
    batch_size: Any
    diverging: Any
    violations: Any


class FireflyLoop(BlockLoop):
    """See `Firefly`: the same step and the same random numbers, compiled."""

    def __init__(
        self,
        model: NativeLowerBound,
        proposal: NativeProposal,
        share: float,
        target: Target,
        key: int,
        threads: int,
    ) -> None:
        self._model, self._proposal, self._share = model, proposal, share
        pieces = (proposal.propose, proposal.log_ratio, model.log_prior, model.gap, model.total)
        super().__init__(piece_once(_loop, *pieces), target, key, threads)

    @classmethod
    def of(cls, kernel: Firefly, target: Target, key: int, threads: int) -> FireflyLoop | None:
        """Return the loop of a kernel, or None if one of its parts has no compiled form."""
        moves = native_form(kernel.proposal, "native", "sample", "log_density")
        offered = native_form(target.model, "native_lower_bound", "log_prior", "log_lik", "lower_bound")
        bound = target.surrogate
        plain = target.device.type == "cpu" and not target.common_batch and available()
        if moves is None or offered is None or not isinstance(bound, LowerBound) or not plain:
            return None
        proposal: NativeProposal | None = moves()
        model: NativeLowerBound | None = offered(target.data.fields, bound.sums, tuned=bound.tuned)
        if proposal is None or model is None:
            return None
        return cls(model, proposal, kernel.share, target, key, threads)

    def prepare(self, state: State, first_step: int, controls: Controls) -> Arguments:
        """Return the arguments for the K steps from `first_step` on; every field of `controls` is (K, C)."""
        points = Points.of(state)
        return Arguments(
            stream=Stream.of(self._key, first_step),
            settings=self._share,
            chains=FireflyChains(points, state.aux[GAPS].numpy().copy()),
            schedule=ControlArrays.of(controls, self._target),
            args=(self._model.args, self._proposal.args),
            out=record_arrays(FireflyRecord, controls, points.theta.shape[1]),
        )

    def finish(self, arguments: Arguments) -> tuple[State, Record]:
        """Return the state after the steps and their record, from the arguments of the finished loop."""
        record = record_of(arguments.out, n_lik_overhead=0, n_grad=0, log_ratio_var=math.nan)
        record["n_lik"] = 2 * record["batch_size"].astype(np.int64)
        points, gaps = arguments.chains
        return State(points.evaluation(), {GAPS: torch.from_numpy(gaps)}), record


register(Firefly, FireflyLoop.of)


@piece
def _log_odds(gap: Any, beta: Any) -> Any:
    """Return log((L - B) / B) = log(exp(gap / T) - 1)."""
    x = max(gap, LEAST) * beta
    return x if x > 30.0 else math.log(math.expm1(x))


@piece
def _uniform_of_datum(i: Any, draw: Any) -> Any:
    """Return element i of the uniforms of this step with use 1, see `mhrun.random.Draws.uniforms_at`."""
    a, b, c, d = philox(u64(i >> 2), ARRIVALS + USE, draw)
    lane = i & 3
    word = a if lane == 0 else b if lane == 1 else c if lane == 2 else d
    return (np.float64(word) + 0.5) * 2.0**-32


def _loop(propose: Piece, proposal_ratio: Piece, log_prior: Piece, gap_of: Piece, total: Piece) -> Piece:
    def loop(chains: Range, steps: Range, work: Any, arguments: Any) -> None:
        key, first_step = arguments.stream
        share = arguments.settings
        points, all_gaps = arguments.chains
        theta, kept_prior = points
        step_size, noise_temperature, scale, prior_power = arguments.schedule
        model, proposal = arguments.args
        out_theta, out_accepted, out_log_ratio, out_size, out_diverging, out_violations = arguments.out
        dim, n = theta.shape[1], all_gaps.shape[1]
        log_share = math.log(share)
        rate = np.inf if share == 1 else -math.log1p(-share)
        bright, bright_gaps = np.empty(n, np.int64), np.empty(n)
        changed, new_gaps = np.empty(n, np.int64), np.empty(n)
        candidate = np.empty(dim)
        for c in range(chains.first, chains.last):
            gaps, current = all_gaps[c], theta[c]
            for k in range(steps.first, steps.last):
                draw = Draw(key, first_step + u64(k), u64(c))
                beta = scale[k, c] / np.float64(n)
                n_tried, wrong, changes = np.int64(0), 0, 0
                if draw.step <= u64(1):  # from p(z | theta): all gaps are known
                    n_tried = np.int64(n)
                    for i in range(n):
                        if _uniform_of_datum(i, draw) < math.exp(-gaps[i] * beta):
                            gaps[i] = DARK
                else:
                    for i in range(n):
                        if gaps[i] != DARK:
                            u = _uniform_of_datum(i, draw)
                            if math.log(u) < log_share - _log_odds(gaps[i], beta):
                                changed[changes], new_gaps[changes] = i, DARK
                                changes += 1
                    j, place = 0, -1
                    while True:
                        _slot, _coin, gap, u = arrival(u64(j), u64(n), draw)
                        j += 1
                        jump = math.floor(gap / rate) + 1.0
                        if not place + jump < n:
                            break
                        place += int(jump)
                        if gaps[place] == DARK:
                            n_tried += 1
                            new, rounding = gap_of(model, place, current)
                            wrong += new < -rounding or new == -np.inf
                            new = max(new, LEAST)
                            if math.log(u) < _log_odds(new, beta) - log_share:
                                changed[changes], new_gaps[changes] = place, new
                                changes += 1
                    for i in range(changes):
                        gaps[changed[i]] = new_gaps[i]
                controls = StepControls(step_size[k, c], noise_temperature[k, c])
                propose(proposal, current, controls, draw, candidate)
                prior = log_prior(model, candidate)
                log_ratio = prior_power[k, c] * (prior - kept_prior[c])
                log_ratio += proposal_ratio(proposal, current, candidate)
                change, count = beta * (total(model, candidate) - total(model, current)), 0
                for i in range(n):
                    if gaps[i] != DARK:
                        new, rounding = gap_of(model, i, candidate)
                        wrong += new < -rounding or new == -np.inf
                        new = max(new, LEAST)
                        bright[count], bright_gaps[count] = i, new
                        count += 1
                        change += _log_odds(new, beta) - _log_odds(gaps[i], beta)
                log_ratio += change
                accept = math.log(uniform(ACCEPT, draw)) < log_ratio
                if accept:
                    kept_prior[c] = prior
                    for d in range(dim):
                        current[d] = candidate[d]
                    for i in range(count):
                        gaps[bright[i]] = bright_gaps[i]
                for d in range(dim):
                    out_theta[c, k, d] = current[d]
                out_accepted[c, k] = accept
                out_log_ratio[c, k] = log_ratio
                out_size[c, k] = count + n_tried
                out_diverging[c, k] = log_ratio != log_ratio
                out_violations[c, k] = wrong

    return loop
