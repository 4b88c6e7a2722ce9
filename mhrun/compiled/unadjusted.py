"""Stochastic gradient dynamics as one compiled loop over chains and steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from mhrun.compiled.loop import register
from mhrun.compiled.loop_inputs import (
    Arguments,
    BlockLoop,
    Exchanged,
    Range,
    Stream,
    record_arrays,
    record_of,
)
from mhrun.kernels import Unadjusted
from mhrun.native import (
    Draw,
    NativeDynamics,
    NativeModel,
    Piece,
    StepControls,
    native_form,
    piece,
    piece_once,
)
from mhrun.native.indices import Workspaces, filler
from mhrun.native.philox import GRADIENT, MINIBATCH, fill_normals
from mhrun.target import Target
from mhrun.types import Controls, Record, State

u64 = np.uint64


class GradientBatch(NamedTuple):
    """The data of a gradient."""

    m: Any
    n: Any  # uint64
    gradient_sd: Any  # standard deviation of the noise that the target adds


class ControlVariate(NamedTuple):
    """A surrogate of order 1, as the control variate of a gradient; zeros if there is none."""

    theta: Any  # (D,) its reference
    mean: Any  # (D,) the mean gradient of all log-likelihoods there


class GradientSettings(NamedTuple):
    """How gradients are estimated."""

    batch: GradientBatch
    control_variate: ControlVariate


class DynamicsChains(NamedTuple):
    """The state of the chains, changed in place."""

    theta: Any  # (C, D)
    vectors: Any  # (C, A, D): vectors of the dynamics in `State.aux`
    scalars: Any  # (C, S): scalars of the dynamics in `State.aux`
    stopped: Any  # (C,)


class DynamicsControls(NamedTuple):
    """The controls of a block, (K, C) each."""

    step_size: Any
    noise_temperature: Any
    prior_weight: Any


class DynamicsRecord(NamedTuple):
    """The record of each step, (C, K, ...)."""

    theta: Any
    diverging: Any


class UnadjustedLoop(BlockLoop):
    """See `Unadjusted`: the same step and the same random numbers, compiled."""

    def __init__(
        self, model: NativeModel, dynamics: NativeDynamics, m: int, target: Target, key: int, threads: int
    ) -> None:
        self._model = model
        self._dynamics = dynamics
        self._m = m
        self.largest = m  # minibatch
        pieces = (
            filler(target.n, replacement=target.replacement),
            dynamics.move,
            model.gradient,
            model.prior_gradient,
            _unreduced if target.surrogate is None else piece_once(_reduction, model.gradient),
        )
        work = Workspaces(target.n, m, replacement=target.replacement)
        super().__init__(piece_once(_loop, *pieces), target, key, threads, work=work)

    @classmethod
    def of(cls, kernel: Unadjusted, target: Target, key: int, threads: int) -> UnadjustedLoop | None:
        """Return the loop of a kernel, or None if one of its parts has no compiled form."""
        m = kernel.m
        if kernel.passes or kernel.prior is not None or m is None:
            return None
        form = native_form(kernel.dynamics, "native", "start", "move")
        native = form() if form is not None else None
        first = target.surrogate is None or target.surrogate.order == 1
        model = target.native(full=False, plain=first) if native is not None else None
        if native is None or model is None:
            return None
        return cls(model, native, m, target, key, threads)

    def prepare(self, state: State, first_step: int, controls: Controls) -> Arguments:
        """Return the arguments for the K steps from `first_step` on; every field of `controls` is (K, C)."""
        chains = controls.step_size.shape[1]
        theta = state.evaluation.theta.double().numpy().copy()
        names, numbers = self._dynamics.vectors, self._dynamics.scalars
        vectors = np.zeros((chains, max(1, len(names)), theta.shape[1]))
        scalars = np.zeros((chains, max(1, len(numbers))))
        for a, name in enumerate(names):
            vectors[:, a] = state.aux[name].double().numpy()
        for a, name in enumerate(numbers):
            scalars[:, a] = state.aux[name].double().numpy()
        prior_weight = self._target.prior_power(controls.temperature) * controls.temperature
        return Arguments(
            stream=Stream.of(self._key, first_step),
            settings=GradientSettings(
                GradientBatch(self._m, u64(self._target.n), self._target.gradient_noise**0.5),
                self._control_variate(theta.shape[1]),
            ),
            chains=DynamicsChains(theta, vectors, scalars, state.aux["stopped"].numpy().copy()),
            schedule=DynamicsControls(
                controls.step_size.numpy(), controls.noise_temperature.numpy(), prior_weight.numpy()
            ),
            args=(self._model.args, self._dynamics.args),
            out=record_arrays(DynamicsRecord, controls, theta.shape[1]),
        )

    def _control_variate(self, dim: int) -> ControlVariate:
        if self._target.surrogate is None:
            return ControlVariate(np.zeros(dim), np.zeros(dim))
        sums = self._target.surrogate.sums
        return ControlVariate(sums.reference.theta.numpy(), sums.gradient.numpy() / self._target.n)

    def finish(self, arguments: Arguments) -> tuple[State, Record]:
        """Return the state after the steps and their record, from the arguments of the finished loop."""
        where: DynamicsChains = arguments.chains
        record = record_of(
            arguments.out,
            log_ratio=np.nan,
            log_ratio_var=np.nan,
            batch_size=self._m,
            n_lik=0,
            n_lik_overhead=0,
            n_grad=self._target.gradients.per_datum * self._m,
        )
        record["accepted"] = record["valid"] = np.logical_not(record["diverging"])
        names, numbers = self._dynamics.vectors, self._dynamics.scalars
        aux = {name: torch.from_numpy(where.vectors[:, a].copy()) for a, name in enumerate(names)}
        aux |= {name: torch.from_numpy(where.scalars[:, a].copy()) for a, name in enumerate(numbers)}
        evaluation = self._target.prior(torch.from_numpy(where.theta))
        return State(evaluation, aux | {"stopped": torch.from_numpy(where.stopped)}), record

    def exchanged(self, arguments: Arguments) -> Exchanged:
        """Return what rungs exchange, of the arguments."""
        return Exchanged((arguments.chains.theta,), arguments.chains.stopped)


def _reduction(gradient: Piece) -> Piece:
    """Return the piece that subtracts a control variate from a sum of gradients."""

    @piece
    def reduce(args: Any, index: Any, m: Any, reference: Any, mean_there: Any, there: Any, out: Any) -> None:
        gradient(args, index, m, reference, there)
        for d in range(len(out)):
            out[d] -= there[d] - m * mean_there[d]

    return reduce


@piece
def _unreduced(args: Any, index: Any, m: Any, reference: Any, mean_there: Any, there: Any, out: Any) -> None:
    """Do nothing: there is no control variate, and no second gradient to compile."""


def _loop(fill: Piece, move: Piece, gradient: Piece, prior_gradient: Piece, reduce: Piece) -> Piece:
    def loop(chains: Range, steps: Range, work: Any, arguments: Any) -> None:
        # Tuples are unpacked here, once: in the loops each unpacked array costs a reference count.
        key, first_step = arguments.stream
        m, n, gradient_sd = arguments.settings.batch
        reference, mean_there = arguments.settings.control_variate
        theta, vectors, scalars, stopped = arguments.chains
        step_size, noise_temperature, prior_weight = arguments.schedule
        model, dynamics = arguments.args
        out_theta, out_diverging = arguments.out
        dim = theta.shape[1]
        index = np.empty(m + 1, np.int64)
        grad, prior, there = np.empty(dim), np.empty(dim), np.empty(dim)
        before, noise = np.empty(dim), np.empty(dim)
        for c in range(chains.first, chains.last):
            current = theta[c]
            chain = u64(c)
            for k in range(steps.first, steps.last):
                if not stopped[c]:
                    draw = Draw(key, first_step + u64(k), chain)
                    controls = StepControls(step_size[k, c], noise_temperature[k, c])
                    fill(index, m, n, draw, MINIBATCH, 0, work)
                    gradient(model, index, m, current, grad)
                    reduce(model, index, m, reference, mean_there, there, grad)
                    prior_gradient(model, current, prior)
                    for d in range(dim):
                        grad[d] = grad[d] * (np.float64(n) / m) + prior_weight[k, c] * prior[d]
                        before[d] = current[d]
                    if gradient_sd > 0:
                        fill_normals(noise, GRADIENT, draw)
                        for d in range(dim):
                            grad[d] += gradient_sd * noise[d]
                    move(dynamics, current, grad, vectors[c], scalars[c], controls, draw)
                    for d in range(dim):
                        if not np.isfinite(current[d]):
                            stopped[c] = True
                    if stopped[c]:
                        for d in range(dim):
                            current[d] = before[d]
                for d in range(dim):
                    out_theta[c, k, d] = current[d]
                out_diverging[c, k] = stopped[c]

    return loop


register(Unadjusted, UnadjustedLoop.of)
