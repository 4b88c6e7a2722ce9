"""The Metropolis-Hastings step of a proposal with gradients, or of a trajectory, as one compiled loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from mhrun.compiled.comparison import DecisionRecord, PairedBatch, index_filler, noise_of
from mhrun.compiled.gradients import beginning, gradient_of, of_posterior, score_of, settle_of
from mhrun.compiled.loop_inputs import (
    Arguments,
    BlockLoop,
    Exchanged,
    Range,
    Stream,
    record_arrays,
    record_of,
)
from mhrun.compiled.part_forms import GradientForms, decision_of, gradient_forms_of
from mhrun.kernels import MetropolisHastings
from mhrun.native import (
    FULL,
    SHARED,
    STORED,
    Draw,
    NativeDecision,
    NativeModel,
    Piece,
    StepControls,
    piece_once,
)
from mhrun.native.indices import Workspaces
from mhrun.native.philox import MINIBATCH
from mhrun.target import Target
from mhrun.types import Controls, Evaluation, Record, State

u64 = np.uint64


class MoveSettings(NamedTuple):
    """The data of the steps, whether they begin a chain, and when a move diverges."""

    batch: PairedBatch
    begins: Any  # whether the first step computes the gradient of the starting point, which is kept then
    lost: Any  # log-ratio below which a move diverges


class GradientChains(NamedTuple):
    """The state of the chains, changed in place."""

    theta: Any  # (C, D)
    grad: Any  # (C, D): of the log posterior, unless the pairing rescores
    # (C, 4): log prior, the mean and variance of the log-likelihood that the pairing keeps, and the factor of the
    # log-prior in `grad`
    kept: Any


class GradientControls(NamedTuple):
    """The controls of a block, (K, C) each."""

    step_size: Any
    noise_temperature: Any
    scale: Any  # n / T
    prior_power: Any
    prior_weight: Any  # T prior_power: the factor of the log-prior's gradient


class GradientData(NamedTuple):
    """What the gradients along a trajectory are computed from."""

    args: Any  # of the model
    index: Any
    m: Any
    n: Any
    prior_weight: Any
    prior: Any  # (D,), overwritten


class GradientLoop(BlockLoop):
    """See `MetropolisHastings`: the same step and the same random numbers, compiled, for proposals with gradients."""

    def __init__(
        self,
        model: NativeModel,
        forms: GradientForms,
        decision: NativeDecision,
        target: Target,
        key: int,
        threads: int,
    ) -> None:
        self._model = model
        self._move = forms.move
        self._decision = decision
        self.mode = forms.pairing.mode
        self._m = target.n if forms.pairing.m is None else forms.pairing.m
        self.largest = 0 if self.mode == FULL else self._m  # minibatch
        fill = index_filler(target, self.mode)
        gradient = gradient_of(model, self.mode)
        pieces = (
            fill,
            forms.move.follower(piece_once(_on_data, gradient)),
            forms.move.log_ratio,
            decision.decide,
            model.log_prior,
            beginning(model, self.mode, fill),
            score_of(model, self.mode),
            piece_once(of_posterior, model.prior_gradient),
            settle_of(model, self.mode),
        )
        work = Workspaces(target.n, self.largest, replacement=target.replacement)
        super().__init__(piece_once(_loop, *pieces), target, key, threads, work=work)

    @classmethod
    def of(cls, kernel: MetropolisHastings, target: Target, key: int, threads: int) -> GradientLoop | None:
        """Return the loop of a kernel, or None if one of its parts has no compiled form."""
        forms, decision = gradient_forms_of(kernel), decision_of(kernel.rule)
        if forms is None or decision is None:
            return None
        model = target.native(full=forms.pairing.mode == FULL)
        return None if model is None else cls(model, forms, decision, target, key, threads)

    def prepare(self, state: State, first_step: int, controls: Controls) -> Arguments:
        """Return the arguments for the K steps from `first_step` on; every field of `controls` is (K, C)."""
        target, point = self._target, state.evaluation
        begins = self.mode != SHARED and point.grad is None and len(controls.temperature) > 0
        if begins:
            point = target.gradients.added_to(point, controls.temperature[0])
        share = 0.0 if self.mode == FULL else target.batches.error_share(self._m)
        # Exactly 1 if the prior is tempered: T / T is not, and a gradient that is kept would be changed by rounding.
        weight = target.gradients.kept_temperature(controls.temperature)
        if weight is None:
            weight = torch.ones_like(controls.temperature)
        return Arguments(
            stream=Stream.of(self._key, first_step),
            settings=MoveSettings(
                PairedBatch(self.mode, self._m, u64(target.n), share), begins, self._move.lost
            ),
            chains=self._chains(point),
            schedule=GradientControls(
                controls.step_size.numpy(),
                controls.noise_temperature.numpy(),
                (target.n / controls.temperature).numpy(),
                target.prior_power(controls.temperature).numpy(),
                weight.numpy(),
            ),
            args=(self._model.args, self._move.args, self._decision.args),
            out=record_arrays(DecisionRecord, controls, point.theta.shape[1]),
        )

    def _chains(self, point: Evaluation) -> GradientChains:
        """Return copies of the points."""
        theta = point.theta.double().numpy().copy()
        grad = np.zeros_like(theta) if point.grad is None else point.grad.double().numpy().copy()
        kept = np.ones((len(theta), 4))
        fields = (point.log_prior, point.log_lik_mean, point.log_lik_var, point.grad_temperature)
        for column, field in enumerate(fields):
            if field is not None:
                kept[:, column] = field.double().numpy()
        return GradientChains(theta, grad, kept)

    def finish(self, arguments: Arguments) -> tuple[State, Record]:
        """Return the state after the steps and their record, from the arguments of the finished loop."""
        where: GradientChains = arguments.chains
        reads = 2 * self._m if self.mode == SHARED else self._m
        n_grad = reads + self._move.between * self._m
        record = record_of(arguments.out, batch_size=self._m, n_lik=reads, n_lik_overhead=0, n_grad=n_grad)
        if arguments.settings.begins:
            record["n_grad"] = record["n_grad"].copy()
            record["n_grad"][:, 0] += self._m
        prior, mean, var, weight = (torch.from_numpy(where.kept[:, k].copy()) for k in range(4))
        evaluation = Evaluation(torch.from_numpy(where.theta), prior)
        if self.mode != SHARED:
            evaluation = evaluation._replace(
                log_lik_mean=mean,
                log_lik_var=var,
                grad=torch.from_numpy(where.grad),
                grad_temperature=self._target.gradients.kept_temperature(weight),
            )
        return State(evaluation, {}), record

    def exchanged(self, arguments: Arguments) -> Exchanged:
        """Return what rungs exchange, of the arguments."""
        chains: GradientChains = arguments.chains
        return Exchanged(tuple(chains), np.zeros(len(chains.theta), np.bool_))


def _on_data(gradient: Piece) -> Piece:
    def on_data(data: Any, theta: Any, out: Any) -> None:
        gradient(data.args, data.index, data.m, data.n, data.prior_weight, theta, data.prior, out)

    return on_data


def _loop(
    fill: Piece,
    follow: Piece,
    move_ratio: Piece,
    decide: Piece,
    log_prior: Piece,
    begin: Piece,
    score: Piece,
    complete: Piece,
    settle: Piece,
) -> Piece:
    def loop(chains: Range, steps: Range, work: Any, arguments: Any) -> None:
        # Tuples are unpacked here, once: in the loops each unpacked array costs a reference count.
        key, first_step = arguments.stream
        batch, _, lost = arguments.settings
        mode, m, n, _ = batch
        theta, gradients, kept = arguments.chains
        step_size, noise_temperature, scale, prior_power, prior_weight = arguments.schedule
        model, move, rule = arguments.args
        out_theta, out_accepted, out_log_ratio, out_var, out_diverging = arguments.out
        dim = theta.shape[1]
        index = np.empty(m + 1, np.int64)
        if mode == FULL:
            for i in range(m):
                index[i] = i
        candidate, there, prior_grad = np.empty(dim), np.empty(dim), np.empty(dim)
        momenta = np.empty((2, dim))
        for c in range(chains.first, chains.last):
            current, here = theta[c], gradients[c]
            chain = u64(c)
            for k in range(steps.first, steps.last):
                draw = Draw(key, first_step + u64(k), chain)
                controls = StepControls(step_size[k, c], noise_temperature[k, c])
                weight = prior_weight[k, c]
                begin(model, index, batch, draw, work, weight, kept[c, 3], current, prior_grad, here)
                kept[c, 3] = weight
                data = GradientData(model, index, m, n, weight, prior_grad)
                path = follow(move, data, current, here, controls, draw, candidate, momenta)
                if mode == STORED:  # each point has its own minibatch
                    fill(index, m, n, draw, MINIBATCH, 0, work)
                prior = log_prior(model, candidate)
                mean_kept, var_kept = kept[c, 1], kept[c, 2]
                sums = score(model, index, m, candidate, there)
                complete(model, m, n, weight, candidate, prior_grad, there)
                gain, spread, mean, var = settle(
                    model, batch, index, current, candidate, sums, mean_kept, var_kept
                )
                offset = prior_power[k, c] * (prior - kept[c, 0])
                offset += move_ratio(move, current, candidate, here, there, path, controls)
                log_ratio = offset + scale[k, c] * gain
                noise = noise_of(spread, batch, scale[k, c])
                accept = decide(rule, log_ratio, noise, m, draw)
                if accept:
                    kept[c, 0], kept[c, 1], kept[c, 2] = prior, mean, var
                    for d in range(dim):
                        current[d], here[d] = candidate[d], there[d]
                for d in range(dim):
                    out_theta[c, k, d] = current[d]
                out_accepted[c, k] = accept
                out_log_ratio[c, k] = log_ratio
                out_var[c, k] = noise
                out_diverging[c, k] = log_ratio != log_ratio or log_ratio < lost

    return loop
