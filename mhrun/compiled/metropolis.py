"""The Metropolis-Hastings step as one compiled loop over chains and steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from mhrun.compiled.comparison import DecisionRecord, PairedBatch, comparison, index_filler, noise_of
from mhrun.compiled.gradient_moves import GradientLoop
from mhrun.compiled.growing import GrowingLoop
from mhrun.compiled.loop import Loop, register
from mhrun.compiled.loop_inputs import (
    Arguments,
    BlockLoop,
    ControlArrays,
    Exchanged,
    Range,
    Stream,
    record_arrays,
    record_of,
)
from mhrun.compiled.part_forms import decision_of, forms_of
from mhrun.compiled.thinned import ThinnedLoop
from mhrun.kernels import MetropolisHastings
from mhrun.native import (
    FULL,
    SHARED,
    Draw,
    NativeDecision,
    NativeModel,
    NativePairing,
    NativeProposal,
    Piece,
    StepControls,
    piece_once,
)
from mhrun.native.indices import Workspaces
from mhrun.native.philox import MINIBATCH
from mhrun.parts import ARRIVALS
from mhrun.target import Target
from mhrun.types import Controls, Evaluation, Record, State

u64 = np.uint64


class MetropolisChains(NamedTuple):
    """The state of the chains, changed in place."""

    theta: Any  # (C, D)
    kept: Any  # (C, 3): log prior, and the mean and variance of the log-likelihood that the pairing keeps


class MetropolisLoop(BlockLoop):
    """See `MetropolisHastings`: the same step and the same random numbers, compiled."""

    def __init__(
        self,
        model: NativeModel,
        proposal: NativeProposal,
        pairing: NativePairing,
        decision: NativeDecision,
        target: Target,
        key: int,
        threads: int,
    ) -> None:
        self._model = model
        self._proposal = proposal
        self._decision = decision
        self.mode = pairing.mode
        self._m = target.n if pairing.m is None else pairing.m
        self.largest = 0 if self.mode == FULL else self._m  # minibatch
        pieces = (
            index_filler(target, self.mode),
            proposal.propose,
            proposal.log_ratio,
            decision.decide,
            model.log_prior,
            comparison(model, self.mode),
        )
        work = Workspaces(target.n, self.largest, replacement=target.replacement)
        super().__init__(piece_once(_loop, *pieces), target, key, threads, work=work)

    @classmethod
    def of(cls, kernel: MetropolisHastings, target: Target, key: int, threads: int) -> MetropolisLoop | None:
        """Return the loop of a kernel, or None if one of its parts has no compiled form."""
        forms, decision = forms_of(kernel), decision_of(kernel.rule)
        if forms is None or decision is None:
            return None
        model = target.native(full=forms.pairing.mode == FULL)
        return None if model is None else cls(model, *forms, decision, target, key, threads)

    def prepare(self, state: State, first_step: int, controls: Controls) -> Arguments:
        """Return the arguments for the K steps from `first_step` on; every field of `controls` is (K, C)."""
        chains = controls.step_size.shape[1]
        point, n = state.evaluation, self._target.n
        theta = point.theta.double().numpy().copy()
        empty = torch.zeros(chains)
        fields = (point.log_prior, point.log_lik_mean, point.log_lik_var)
        kept = np.stack([(empty if f is None else f).double().numpy() for f in fields], axis=1)
        share = 0.0 if self.mode == FULL else self._target.batches.error_share(self._m)
        return Arguments(
            stream=Stream.of(self._key, first_step),
            settings=PairedBatch(self.mode, self._m, u64(n), share),
            chains=MetropolisChains(theta, kept),
            schedule=ControlArrays.of(controls, self._target),
            args=(self._model.args, self._proposal.args, self._decision.args),
            out=record_arrays(DecisionRecord, controls, theta.shape[1]),
        )

    def finish(self, arguments: Arguments) -> tuple[State, Record]:
        """Return the state after the steps and their record, from the arguments of the finished loop."""
        where: MetropolisChains = arguments.chains
        n_lik = 2 * self._m if self.mode == SHARED else self._m
        record = record_of(arguments.out, batch_size=self._m, n_lik=n_lik, n_lik_overhead=0, n_grad=0)
        evaluation = Evaluation(torch.from_numpy(where.theta), torch.from_numpy(where.kept[:, 0].copy()))
        if self.mode != SHARED:
            mean, var = (torch.from_numpy(where.kept[:, k].copy()) for k in (1, 2))
            evaluation = evaluation._replace(log_lik_mean=mean, log_lik_var=var)
        return State(evaluation, {}), record

    def exchanged(self, arguments: Arguments) -> Exchanged:
        """Return what rungs exchange, of the arguments."""
        theta, kept = arguments.chains
        return Exchanged((theta, kept), np.zeros(len(theta), np.bool_))


def _loop(
    fill: Piece, propose: Piece, proposal_ratio: Piece, decide: Piece, log_prior: Piece, compare: Piece
) -> Piece:
    def loop(chains: Range, steps: Range, work: Any, arguments: Any) -> None:
        # Tuples are unpacked here, once: in the loops each unpacked array costs a reference count.
        key, first_step = arguments.stream
        batch = arguments.settings
        mode, m, n, _ = batch
        theta, kept = arguments.chains
        step_size, noise_temperature, scale, prior_power = arguments.schedule
        model, proposal, rule = arguments.args
        out_theta, out_accepted, out_log_ratio, out_var, out_diverging = arguments.out
        # Element by element: a slice assignment here keeps LLVM from vectorising the loops of the pieces.
        dim = theta.shape[1]
        index = np.empty(m + 1 if mode != FULL else 1, np.int64)
        candidate = np.empty(dim)
        for c in range(chains.first, chains.last):
            current = theta[c]
            chain = u64(c)
            for k in range(steps.first, steps.last):
                draw = Draw(key, first_step + u64(k), chain)
                controls = StepControls(step_size[k, c], noise_temperature[k, c])
                propose(proposal, current, controls, draw, candidate)
                prior = log_prior(model, candidate)
                if mode != FULL:
                    fill(index, m, n, draw, MINIBATCH, 0, work)
                gain, spread, mean, var = compare(
                    model, batch, index, current, candidate, kept[c, 1], kept[c, 2]
                )
                offset = prior_power[k, c] * (prior - kept[c, 0])
                offset += proposal_ratio(proposal, current, candidate)
                log_ratio = offset + scale[k, c] * gain
                noise = noise_of(spread, batch, scale[k, c])
                accept = decide(rule, log_ratio, noise, m, draw)
                if accept:
                    kept[c, 0], kept[c, 1], kept[c, 2] = prior, mean, var
                    for d in range(dim):
                        theta[c, d] = candidate[d]
                for d in range(dim):
                    out_theta[c, k, d] = theta[c, d]
                out_accepted[c, k] = accept
                out_log_ratio[c, k] = log_ratio
                out_var[c, k] = noise
                out_diverging[c, k] = log_ratio != log_ratio

    return loop


def metropolis_loop(kernel: MetropolisHastings, target: Target, key: int, threads: int) -> Loop | None:
    """Return the loop of a kernel, or None if one of its parts has no compiled form."""
    if kernel.rule.wants == ARRIVALS:
        return ThinnedLoop.of(kernel, target, key, threads)
    if kernel.rule.wants_terms:
        return GrowingLoop.of(kernel, target, key, threads)
    loop = GradientLoop if kernel.proposal.gradients else MetropolisLoop
    return loop.of(kernel, target, key, threads)


register(MetropolisHastings, metropolis_loop)
