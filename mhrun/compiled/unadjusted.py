"""Stochastic gradient dynamics as one compiled loop over chains and steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mhrun.compiled.loop import register
from mhrun.compiled.loop_inputs import LoopInputs
from mhrun.kernels import Unadjusted
from mhrun.native import NativeDynamics, NativeModel, Piece, native_form, piece
from mhrun.native.philox import GRADIENT, MINIBATCH, Workspaces, fill_normals, filler, split_key
from mhrun.target import Target
from mhrun.types import Controls, Record, State

u64 = np.uint64
_bodies: dict[tuple[Piece, ...], Piece] = {}


class UnadjustedLoop:
    """See `Unadjusted`: the same step and the same random numbers, compiled."""

    def __init__(
        self, model: NativeModel, dynamics: NativeDynamics, m: int, target: Target, key: int, threads: int
    ) -> None:
        self._model = model
        self._dynamics = dynamics
        self._m = m
        self._target = target
        self._key = key
        self._threads = threads
        self.largest = m  # minibatch
        self._work = Workspaces(target.n, m, replacement=target.replacement)
        pieces = (
            filler(target.n, target.replacement),
            dynamics.move,
            model.gradient,
            model.prior_gradient,
        )
        if pieces not in _bodies:
            _bodies[pieces] = piece(_loop(*pieces))
        self.body = _bodies[pieces]

    @classmethod
    def of(cls, kernel: Unadjusted, target: Target, key: int, threads: int) -> UnadjustedLoop | None:
        """Return the loop of a kernel, or None if one of its parts has no compiled form."""
        m = kernel.m
        if kernel.passes or kernel.prior is not None or m is None:
            return None
        form = native_form(kernel.dynamics, "native", "start", "move")
        native = form() if form is not None else None
        model = target.native(full=False) if native is not None else None
        if native is None or model is None:
            return None
        return cls(model, native, m, target, key, threads)

    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the K steps from `first_step` on; every field of `controls` is (K, C)."""
        return self.prepare(state, first_step, controls).run(self.body, self._threads, self._work)

    def prepare(self, state: State, first_step: int, controls: Controls) -> LoopInputs:
        """Lay out what the loop works on in the K steps from `first_step` on."""
        steps, chains = controls.step_size.shape
        theta = state.evaluation.theta.double().numpy().copy()
        names, scalars = self._dynamics.aux, self._dynamics.scalars
        aux = np.zeros((chains, max(1, len(names)), theta.shape[1]))
        own = np.zeros((chains, max(1, len(scalars))))
        for a, name in enumerate(names):
            aux[:, a] = state.aux[name].double().numpy()
        for a, name in enumerate(scalars):
            own[:, a] = state.aux[name].double().numpy()
        stopped = state.aux["stopped"].numpy().copy()
        n = self._target.n
        record: dict[str, npt.NDArray[Any]] = {
            "theta": np.empty((chains, steps, theta.shape[1])),
            "diverging": np.empty((chains, steps), np.bool_),
        }
        prior_weight = self._target.prior_power(controls.temperature) * controls.temperature
        args = (
            *(u64(first_step), self._m, u64(n), split_key(self._key)),
            *(theta, aux, own, stopped),
            controls.step_size.numpy(),
            controls.noise_temperature.numpy(),
            prior_weight.numpy(),
            self._target.gradient_noise**0.5,
            *(self._model.args, self._dynamics.args),
            *record.values(),
        )

        def finish() -> tuple[State, Record]:
            return self._finished(theta, aux, own, stopped, record)

        return LoopInputs(args, steps, (theta,), stopped, record["theta"], finish)

    def _finished(
        self,
        theta: npt.NDArray[np.float64],
        aux: npt.NDArray[np.float64],
        own: npt.NDArray[np.float64],
        stopped: npt.NDArray[np.bool_],
        record: dict[str, npt.NDArray[Any]],
    ) -> tuple[State, Record]:
        record["accepted"] = record["valid"] = np.logical_not(record["diverging"])
        for name, value in (
            ("log_ratio", np.float32(np.nan)),
            ("log_ratio_var", np.float32(np.nan)),
            ("batch_size", np.int32(self._m)),
            ("n_lik", np.int64(0)),
            ("n_lik_overhead", np.int64(0)),
            ("n_grad", np.int64(self._m)),
        ):
            record[name] = np.broadcast_to(value, record["diverging"].shape)
        names, scalars = self._dynamics.aux, self._dynamics.scalars
        updated = {name: torch.from_numpy(aux[:, a].copy()) for a, name in enumerate(names)}
        updated |= {name: torch.from_numpy(own[:, a].copy()) for a, name in enumerate(scalars)}
        evaluation = self._target.prior(torch.from_numpy(theta))
        return State(evaluation, updated | {"stopped": torch.from_numpy(stopped)}), record


def _loop(fill: Piece, move: Piece, gradient: Piece, prior_gradient: Piece) -> Piece:
    def loop(
        first_chain: Any,
        last_chain: Any,
        first: Any,  # of the K steps that this call does
        last: Any,
        work: Any,
        first_step: Any,
        m: Any,
        n: Any,
        key: Any,
        theta: Any,  # (C, D), in and out
        aux: Any,  # (C, A, D), in and out
        own: Any,  # (C, S), in and out
        stopped: Any,  # (C,), in and out
        step_size: Any,  # (K, C)
        noise_temperature: Any,  # (K, C)
        prior_weight: Any,  # (K, C)
        rough: Any,  # standard deviation of noise that the target adds
        model: Any,
        dynamics: Any,
        out_theta: Any,
        out_diverging: Any,
    ) -> None:
        dim = theta.shape[1]
        index = np.empty(m + 1, np.int64)
        grad, prior, before, noise = np.empty(dim), np.empty(dim), np.empty(dim), np.empty(dim)
        for c in range(first_chain, last_chain):
            current = theta[c]
            chain = u64(c)
            for k in range(first, last):
                if not stopped[c]:
                    step = first_step + u64(k)
                    fill(index, m, n, step, chain, key, MINIBATCH, 0, work)
                    gradient(model, index, m, current, grad)
                    prior_gradient(model, current, prior)
                    for d in range(dim):
                        grad[d] = grad[d] * (np.float64(n) / m) + prior_weight[k, c] * prior[d]
                        before[d] = current[d]
                    if rough > 0:
                        fill_normals(noise, GRADIENT, step, chain, key)
                        for d in range(dim):
                            grad[d] += rough * noise[d]
                    move(
                        dynamics,
                        current,
                        grad,
                        aux[c],
                        own[c],
                        step_size[k, c],
                        noise_temperature[k, c],
                        key,
                        step,
                        chain,
                    )
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
