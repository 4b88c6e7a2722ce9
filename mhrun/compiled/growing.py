"""The Metropolis-Hastings step with a sequential test, as one compiled loop."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

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
from mhrun.compiled.part_forms import forms_of
from mhrun.kernels import MetropolisHastings
from mhrun.native import (
    ACCEPT,
    GROWING,
    UNDECIDED,
    Draw,
    NativeModel,
    NativeProposal,
    NativeTest,
    Piece,
    Seen,
    SequentialTest,
    StepControls,
    native_form,
    piece,
    piece_once,
)
from mhrun.native.forms import NEARLY_EQUAL
from mhrun.native.indices import Workspaces, filler
from mhrun.native.philox import MINIBATCH
from mhrun.target import Target
from mhrun.types import Controls, Record, State

u64 = np.uint64
_TILE = 1024  # terms computed at once


class StageSizes(NamedTuple):
    """The sizes of a sequential test."""

    n: Any
    sizes: Any  # (L,) data at each stage
    pilot: Any  # data read before the first stage
    wants_full_pass_stats: Any  # whether the test begins with statistics of all data


class GrowingRecord(NamedTuple):
    """The record of each step, (C, K, ...)."""

    theta: Any
    accepted: Any
    log_ratio: Any
    log_ratio_var: Any
    log_ratio_skew: Any
    batch_size: Any
    diverging: Any


class GrowingLoop(BlockLoop):
    """See `MetropolisHastings`: the same step and the same random numbers, compiled.

    Stages are read one by one: no data beyond the decision are read.
    """

    def __init__(
        self,
        model: NativeModel,
        proposal: NativeProposal,
        test: NativeTest,
        target: Target,
        key: int,
        threads: int,
    ) -> None:
        assert model.terms is not None
        assert model.full_pass_stats is not None
        self._model = model
        self._proposal = proposal
        self._test = test
        fill = filler(target.n, grows=True)
        moving = (proposal.propose, proposal.log_ratio)
        full_pass_stats = model.full_pass_stats if test.wants_full_pass_stats else _nothing_read
        pieces = (fill, *moving, test.begin, test.judge, model.log_prior, model.terms, full_pass_stats)
        work = Workspaces(target.n, target.n, grows=True)
        super().__init__(piece_once(_loop, *pieces), target, key, threads, work=work)

    @classmethod
    def of(cls, kernel: MetropolisHastings, target: Target, key: int, threads: int) -> GrowingLoop | None:
        """Return the loop of a kernel, or None if one of its parts has no compiled form."""
        forms, tests = forms_of(kernel), native_form(kernel.rule, "sequential", "decide")
        test = None if tests is None else tests(target.n)
        if forms is None or test is None or forms.pairing.mode != GROWING:
            return None
        model = target.native(full=test.wants_full_pass_stats)
        if model is None or model.terms is None or model.full_pass_stats is None:
            return None
        return cls(model, forms.proposal, test, target, key, threads)

    def prepare(self, state: State, first_step: int, controls: Controls) -> Arguments:
        """Return the arguments for the K steps from `first_step` on; every field of `controls` is (K, C)."""
        test, points = self._test, Points.of(state)
        return Arguments(
            stream=Stream.of(self._key, first_step),
            settings=StageSizes(
                self._target.n, np.asarray(test.sizes, np.int64), test.pilot, test.wants_full_pass_stats
            ),
            chains=points,
            schedule=ControlArrays.of(controls, self._target),
            args=(self._model.args, self._proposal.args, test.args),
            out=record_arrays(GrowingRecord, controls, points.theta.shape[1]),
        )

    def finish(self, arguments: Arguments) -> tuple[State, Record]:
        """Return the state after the steps and their record, from the arguments of the finished loop."""
        overhead = 2 * self._target.n if self._test.wants_full_pass_stats else 0
        record = record_of(arguments.out, n_lik_overhead=overhead, n_grad=0)
        record["n_lik"] = 2 * record["batch_size"].astype(np.int64) + overhead
        return State(arguments.chains.evaluation(), {}), record


@piece
def _nothing_read(args: Any, origin: Any, candidate: Any) -> Any:
    """Return what a test that wants no statistics of all data has of them; it is never called, but quick to compile."""
    return 0.0, 0.0, 0.0


def _loop(
    fill: Piece,
    propose: Piece,
    proposal_ratio: Piece,
    begin: Piece,
    judge: Piece,
    log_prior: Piece,
    terms: Piece,
    full_pass_stats: Piece,
) -> Piece:
    def loop(chains: Range, steps: Range, work: Any, arguments: Any) -> None:
        # Tuples are unpacked here, once: in the loops each unpacked array costs a reference count.
        key, first_step = arguments.stream
        n, sizes, pilot, wants_full_pass_stats = arguments.settings
        theta, kept_prior = arguments.chains
        step_size, noise_temperature, scale, prior_power = arguments.schedule
        model, proposal, rule = arguments.args
        out_theta, out_accepted, out_log_ratio, out_var, out_skew, out_size, out_diverging = arguments.out
        # Element by element: a slice assignment here keeps LLVM from vectorising the loops of the pieces.
        dim = theta.shape[1]
        index = np.empty(_TILE + 1, np.int64)
        values = np.empty(_TILE)
        candidate = np.empty(dim)
        for c in range(chains.first, chains.last):
            current = theta[c]
            chain = u64(c)
            for k in range(steps.first, steps.last):
                draw = Draw(key, first_step + u64(k), chain)
                controls = StepControls(step_size[k, c], noise_temperature[k, c])
                propose(proposal, current, controls, draw, candidate)
                prior = log_prior(model, candidate)
                offset = prior_power[k, c] * (prior - kept_prior[c])
                offset += proposal_ratio(proposal, current, candidate)
                mean, var, largest = 0.0, 0.0, 0.0
                if wants_full_pass_stats:
                    sum_1, sum_2, largest = full_pass_stats(model, current, candidate)
                    mean = sum_1 / n
                    var = max(sum_2 / n - mean * mean, 0.0)
                test = SequentialTest(n, scale[k, c], offset)
                if pilot == 0:
                    params = begin(rule, test, Seen(-1, n, mean, var, largest), draw)
                # Moments about the mean of the first data: sums of squares would lose the variance of terms far from 0.
                shift, sum_1, sum_2, sum_3, pilot_1, pilot_2, pilot_3 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
                n_read, size, verdict, stage = 0, 0, UNDECIDED, -1 if pilot > 0 else params[3]
                while verdict == UNDECIDED:
                    upto = pilot if stage < 0 else pilot + sizes[stage]
                    while n_read < upto:
                        count = min(_TILE, upto - n_read)
                        fill(index, count, u64(n), draw, MINIBATCH, n_read, work)
                        terms(model, index, count, current, candidate, values)
                        if n_read == 0:
                            for j in range(count):
                                shift += values[j]
                            shift = shift / count if math.isfinite(shift) else 0.0
                        for j in range(count):
                            gap = values[j] - shift
                            sum_1 += gap
                            sum_2 += gap * gap
                            sum_3 += gap * gap * gap
                        n_read += count
                    if stage < 0:  # the pilot's
                        mean = shift + sum_1 / n_read
                        var = max(sum_2 - sum_1 * sum_1 / n_read, 0.0) / (n_read - 1)
                        var = var if math.isfinite(mean) else math.nan
                        params = begin(rule, test, Seen(-1, n_read, mean, var, 0.0), draw)
                        pilot_1, pilot_2, pilot_3, sum_1, sum_2, sum_3 = sum_1, sum_2, sum_3, 0.0, 0.0, 0.0
                        stage = params[3]
                        continue
                    size = n_read - pilot
                    if n_read == n:
                        size = n
                        sum_1 += pilot_1
                        sum_2 += pilot_2
                        sum_3 += pilot_3
                    centred = sum_1 / size
                    mean = shift + centred
                    var = max(sum_2 / size - centred * centred, 0.0)
                    var = var if math.isfinite(mean) else 0.0
                    verdict = judge(rule, params, test, Seen(stage, size, mean, var, 0.0))
                    stage += 1
                accept = verdict == ACCEPT
                if accept:
                    kept_prior[c] = prior
                    for d in range(dim):
                        theta[c, d] = candidate[d]
                for d in range(dim):
                    out_theta[c, k, d] = theta[c, d]
                log_ratio = offset + scale[k, c] * mean
                out_accepted[c, k] = accept
                out_log_ratio[c, k] = log_ratio
                noise, skew = 0.0, 0.0
                if size < n:
                    noise = scale[k, c] ** 2 * var / max(size - 1, 1) * (1 - size / n)
                    if var > NEARLY_EQUAL * centred * centred:
                        third = sum_3 / size - centred * (3 * var + centred * centred)
                        skew = third / (var * math.sqrt(var * size))
                out_var[c, k] = noise
                out_skew[c, k] = skew
                out_size[c, k] = n_read
                out_diverging[c, k] = log_ratio != log_ratio

    return loop
