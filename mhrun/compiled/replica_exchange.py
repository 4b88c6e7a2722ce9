"""Ladders whose rungs move and exchange in machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mhrun.compiled.loop import Loop, compile_loop, register
from mhrun.compiled.metropolis import MetropolisLoop
from mhrun.compiled.unadjusted import UnadjustedLoop
from mhrun.kernels import ReplicaExchange
from mhrun.native import (
    FULL,
    SHARED,
    NativeDecision,
    NativeModel,
    NativePairing,
    Piece,
    compiled,
    native_form,
    over_chains,
    piece,
)
from mhrun.native.philox import ACCEPT, EXCHANGE, MINIBATCH, Workspaces, filler, normals, split_key, uniform
from mhrun.random import Streams, derive_key
from mhrun.target import Target
from mhrun.types import MADE, REFUSED, Controls, Record, State

u64 = np.uint64
_loops: dict[tuple[Piece, ...], Piece] = {}
_decisions: dict[Piece, Piece] = {}


def exchange_loop(kernel: ReplicaExchange, target: Target, key: int, threads: int) -> Loop | None:
    """Return the loop of a ladder, or None if its rungs have none.

    Where only the rungs have one, it stops for each exchange.
    """
    inner = compile_loop(kernel.kernel, target, key, threads)
    if inner is None:
        return None
    form = native_form(kernel.pairing, "native", "start", "current", "compare")
    scoring: NativePairing | None = form() if form is not None else None
    decision = _decision(kernel)
    if isinstance(inner, MetropolisLoop | UnadjustedLoop) and scoring is not None and decision is not None:
        model = target.native(full=scoring.mode == FULL) if scoring.mode in (SHARED, FULL) else None
        if model is not None:
            return ExchangeLoop(kernel, inner, model, scoring, decision, target, key, threads)
    return StagedExchange(kernel, inner, target, key)


def _decision(kernel: ReplicaExchange) -> NativeDecision | None:
    """Return the rule's piece: its own on a noisy log-ratio, or a threshold on it."""
    if (decision := native_form(kernel.rule, "decision", "decide")) is not None:
        found: NativeDecision = decision()
        return found
    form = native_form(kernel.rule, "native", "decide")
    threshold = form() if form is not None else None
    if threshold is None:
        return None
    if threshold not in _decisions:
        _decisions[threshold] = piece(_by(threshold))
    return NativeDecision((), _decisions[threshold])


def _by(threshold: Piece) -> Piece:
    def decide(args: Any, log_ratio: Any, noise: Any, key: Any, step: Any, chain: Any) -> Any:
        return threshold(uniform(ACCEPT, step, chain, key)) < log_ratio

    return decide


class ExchangeLoop:
    """See `ReplicaExchange`: the same step and the same random numbers, compiled."""

    def __init__(
        self,
        kernel: ReplicaExchange,
        inner: MetropolisLoop | UnadjustedLoop,
        model: NativeModel,
        scoring: NativePairing,
        decision: NativeDecision,
        target: Target,
        key: int,
        threads: int,
    ) -> None:
        self._kernel = kernel
        self._inner = inner
        self._model = model
        self._decision = decision
        self._target = target
        self._threads = threads
        self._m = target.n if scoring.m is None else scoring.m
        self._full = scoring.mode == FULL
        largest = max(0 if self._full else self._m, inner.largest)
        self._work = Workspaces(target.n, largest, replacement=target.replacement)
        # The sums over all data that the kernel keeps need no evaluation.
        self._kept = self._full and isinstance(inner, MetropolisLoop) and inner.mode == FULL
        self._keys = tuple(split_key(derive_key(key, f"exchange{which}")) for which in (" 0", " 1", ""))
        pieces = (
            inner.body,
            filler(target.n, target.replacement),
            decision.decide,
            model.log_prior,
            model.difference,
            model.total,
        )
        if pieces not in _loops:
            _loops[pieces] = compiled(_loop(*pieces))
        self._loop = _loops[pieces]

    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the K steps from `first_step` on; every field of `controls` is (K, C)."""
        kernel, target = self._kernel, self._target
        steps, chains = controls.step_size.shape
        prepared = self._inner.prepare(state, first_step, controls)
        exchange = np.zeros((chains, steps), np.int8)
        n = target.n
        over_chains(
            self._loop,
            chains // kernel.rungs,
            self._threads,
            *(kernel.rungs, kernel.every, kernel.order == "alternate", float(kernel.sign), first_step, steps),
            *(self._full, self._kept, self._m, n, self._keys),
            *(prepared.args, prepared.points, prepared.stopped, prepared.theta),
            controls.temperature.numpy(),
            target.prior_power(controls.temperature).numpy(),
            float(target.error_share(self._m)) if not self._full else 0.0,
            2 * target.energy_noise / n**2,
            *(self._model.args, self._decision.args, exchange),
            own=self._work,
        )
        state, record = prepared.finish()
        each = 0 if self._kept else n if self._full else self._m
        counted = record["n_lik"].astype(np.int64) + each * (exchange > 0)
        return state, {**record, "exchange": exchange, "n_lik": counted}


def _loop(
    body: Piece, fill: Piece, decide: Piece, log_prior: Piece, difference: Piece, total: Piece
) -> Piece:
    def loop(
        first_ladder: Any,
        last_ladder: Any,
        work: Any,
        rungs: Any,
        every: Any,
        in_turn: Any,
        sign: Any,
        first_step: Any,
        steps: Any,
        full: Any,
        kept: Any,
        m: Any,
        n: Any,
        keys: Any,  # of the even pairs, of the odd ones, and of which it is
        args: Any,  # of the body
        points: Any,
        stopped: Any,  # (C,)
        out_theta: Any,  # (C, K, D)
        temperature: Any,  # (K, C)
        prior_power: Any,  # (K, C)
        error_share: Any,
        energy_noise_sd: Any,  # variance of the noise of a mean difference
        model: Any,
        rule: Any,
        out_exchange: Any,  # (C, K)
    ) -> None:
        index = np.empty(m + 1 if not full else 1, np.int64)
        theta = points[0]
        k = 0
        while k < steps:
            stop = min(steps, k + every - (first_step + k - 1) % every)
            body(first_ladder * rungs, last_ladder * rungs, k, stop, work, *args)
            k = stop
            if (first_step + stop - 1) % every != 0:
                continue
            time = (first_step + stop - 1) // every
            odd = 0
            if rungs > 2:
                odd = time % 2 if in_turn else int(uniform(EXCHANGE, u64(time), u64(0), keys[2]) < 0.5)
            key = keys[1] if odd else keys[0]
            time_of = u64(time)
            for ladder in range(first_ladder, last_ladder):
                for rung in range(odd, rungs - 1, 2):
                    low = ladder * rungs + rung
                    high = low + 1
                    chain = u64(low)
                    cold, hot = temperature[stop - 1, low], temperature[stop - 1, high]
                    var = 0.0
                    if kept:
                        mean = points[-1][high, 1] - points[-1][low, 1]
                    elif full:
                        mean = (total(model, theta[high]) - total(model, theta[low])) / np.float64(n)
                    else:
                        fill(index, m, u64(n), time_of, chain, key, MINIBATCH, 0, work)
                        one, two = difference(model, index, m, theta[low], theta[high])
                        mean = one / m
                        if error_share > 0:
                            var = max(two - one * mean, 0.0) / (m - 1) / m * error_share if m > 1 else np.nan
                    if energy_noise_sd > 0:
                        mean += np.sqrt(energy_noise_sd) * normals(u64(0), EXCHANGE, time_of, chain, key)[0]
                        var += energy_noise_sd
                    power = sign * (prior_power[stop - 1, low] - prior_power[stop - 1, high])
                    offset = 0.0
                    if power != 0:
                        offset = power * (log_prior(model, theta[high]) - log_prior(model, theta[low]))
                    scale = sign * n * (1 / cold - 1 / hot)
                    made = decide(rule, offset + scale * mean, scale * scale * var, key, time_of, chain)
                    if stopped[low] or stopped[high]:
                        made = False
                    out_exchange[low, stop - 1] = out_exchange[high, stop - 1] = MADE if made else REFUSED
                    if made:
                        for held in points:
                            for d in range(held.shape[1]):
                                held[low, d], held[high, d] = held[high, d], held[low, d]
                        for d in range(theta.shape[1]):
                            out_theta[low, stop - 1, d] = theta[low, d]
                            out_theta[high, stop - 1, d] = theta[high, d]

    return loop


class StagedExchange:
    """See `ReplicaExchange`: the rungs move in machine code, and exchange in torch."""

    def __init__(self, kernel: ReplicaExchange, inner: Loop, target: Target, key: int) -> None:
        self._kernel = kernel
        self._inner = inner
        self._target = target
        self._key = key

    @torch.no_grad()
    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the K steps from `first_step` on; every field of `controls` is (K, C)."""
        steps, chains = controls.step_size.shape
        draws = Streams(self._key, chains, self._target.device, compiled=True).at(first_step)
        every, at = self._kernel.every, 0
        parts: list[dict[str, np.ndarray]] = []
        exchange = np.zeros((chains, steps), np.int8)
        while at < steps or not parts:
            stop = min(steps, at + every - (first_step + at - 1) % every)
            part = controls.each(lambda c, a=at, b=stop: c[a:b].contiguous())  # type: ignore[misc]
            state, record = self._inner.advance(state, first_step + at, part)
            parts.append(dict(record))
            if stop > at and (first_step + stop - 1) % every == 0:
                draws.step = first_step + stop - 1
                state, came, n_lik, n_lik_overhead = self._kernel.exchange(
                    self._target, state, controls.temperature[stop - 1], draws
                )
                exchange[:, stop - 1] = came.numpy()
                for name, count in (("n_lik", n_lik), ("n_lik_overhead", n_lik_overhead)):
                    parts[-1][name] = parts[-1][name].astype(np.int64)
                    parts[-1][name][:, -1] += count.numpy()
                parts[-1]["theta"][:, -1] = state.evaluation.theta.numpy()
            at = stop
        joined = (
            parts[0]
            if len(parts) == 1
            else {name: np.concatenate([p[name] for p in parts], 1) for name in parts[0]}
        )
        return state, {**joined, "exchange": exchange}


register(ReplicaExchange, exchange_loop)
