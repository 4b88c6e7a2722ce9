"""Compiled loops of ladders."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from mhrun.compiled.gradient_moves import GradientLoop
from mhrun.compiled.loop import Loop, built_loop, register
from mhrun.compiled.loop_inputs import Arguments, BlockLoop, Range, Stream
from mhrun.compiled.metropolis import MetropolisLoop
from mhrun.compiled.part_forms import decision_of
from mhrun.compiled.unadjusted import UnadjustedLoop
from mhrun.exchanges import MADE, REFUSED
from mhrun.kernels import ReplicaExchange
from mhrun.native import (
    FULL,
    SHARED,
    Draw,
    NativeDecision,
    NativeModel,
    NativePairing,
    Piece,
    native_form,
    piece,
    piece_once,
)
from mhrun.native.indices import Workspaces, filler
from mhrun.native.philox import EXCHANGE, MINIBATCH, normals, split_key, uniform
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Target
from mhrun.types import Controls, Record, State

u64 = np.uint64


def exchange_loop(kernel: ReplicaExchange, target: Target, key: int, threads: int) -> Loop | None:
    """Return the loop of a ladder, or None if its rungs have no compiled loop.

    If only the rungs have one, the loop stops for each exchange.
    """
    inner = built_loop(kernel.kernel, target, key, threads)
    if inner is None:
        return None
    form = native_form(kernel.pairing, "native", "start", "current", "compare")
    scoring: NativePairing | None = form() if form is not None else None
    decision = decision_of(kernel.rule)
    if (
        isinstance(inner, MetropolisLoop | GradientLoop | UnadjustedLoop)
        and scoring is not None
        and decision is not None
    ):
        model = target.native(full=scoring.mode == FULL) if scoring.mode in (SHARED, FULL) else None
        if model is not None:
            return ExchangeLoop(kernel, inner, model, scoring, decision, target, key)
    return StagedExchange(kernel, inner, target, key)


class ExchangeOrder(NamedTuple):
    """When and in which order neighbours exchange."""

    rungs: Any
    every: Any  # steps
    alternate: Any  # even and odd pairs alternately, or by a coin toss
    sign: Any  # of the log-ratio


class ExchangeBatch(NamedTuple):
    """The data on which an exchange is decided."""

    m: Any
    drawn: Any  # m, or 0 if they are all data
    n: Any
    error_share: Any  # factor of S^2 / m in the variance of a minibatch mean; 0 for all data
    energy_noise_var: Any  # variance of the noise of a mean difference


class ExchangeSettings(NamedTuple):
    """When rungs exchange, and on which data."""

    order: ExchangeOrder
    batch: ExchangeBatch


class ExchangeControls(NamedTuple):
    """The controls of a block, (K, C) each."""

    temperature: Any
    prior_power: Any


class ExchangeRecord(NamedTuple):
    """The record of each step that exchanges change, (C, K, ...)."""

    theta: Any
    exchange: Any


class ExchangeLoop(BlockLoop):
    """See `ReplicaExchange`: the same step and the same random numbers, compiled."""

    def __init__(
        self,
        kernel: ReplicaExchange,
        inner: MetropolisLoop | GradientLoop | UnadjustedLoop,
        model: NativeModel,
        scoring: NativePairing,
        decision: NativeDecision,
        target: Target,
        key: int,
    ) -> None:
        self._kernel = kernel
        self._inner = inner
        self._model = model
        self._decision = decision
        self._m = target.n if scoring.m is None else scoring.m
        self._full = scoring.mode == FULL
        self._drawn = 0 if self._full else self._m
        # Sums over all data that the kernel keeps need no evaluation.
        self._kept = self._full and not isinstance(inner, UnadjustedLoop) and inner.mode == FULL
        # Of the even pairs, of the odd ones, and of the coin toss between them.
        self._keys = tuple(split_key(derive_key(key, f"exchange{suffix}")) for suffix in (" 0", " 1", ""))
        pieces = (
            inner.body,
            self._comparison(target),
            decision.decide,
            model.log_prior,
        )
        work = Workspaces(target.n, max(self._drawn, inner.largest), replacement=target.replacement)
        body = piece_once(_loop, *pieces)
        super().__init__(body, target, key, inner.threads, work=work, rungs=kernel.rungs)

    def _comparison(self, target: Target) -> Piece:
        """Return the piece that compares the log-likelihoods of two rungs.

        It is ``(args, batch: ExchangeBatch, points, low, high, index, draw, work) -> mean, var``: the mean difference
        over data, and its variance over minibatches.
        """
        if self._kept:
            return _of_kept_sums
        if self._full:
            return piece_once(_of_all_data, self._model.total)
        fill = filler(target.n, replacement=target.replacement)
        return piece_once(_of_minibatches, fill, self._model.difference)

    def prepare(self, state: State, first_step: int, controls: Controls) -> Arguments:
        """Return the arguments for the K steps from `first_step` on; every field of `controls` is (K, C)."""
        kernel, target, n = self._kernel, self._target, self._target.n
        rungs = self._inner.prepare(state, first_step, controls)
        share = 0.0 if self._full else target.batches.error_share(self._m)
        alternate = kernel.order == "alternate"
        return Arguments(
            stream=Stream(self._keys, first_step),
            settings=ExchangeSettings(
                ExchangeOrder(kernel.rungs, kernel.every, alternate, float(kernel.sign)),
                ExchangeBatch(self._m, self._drawn, n, share, 2 * target.energy_noise / n**2),
            ),
            chains=self._inner.exchanged(rungs),
            schedule=ExchangeControls(
                controls.temperature.numpy(), target.prior_power(controls.temperature).numpy()
            ),
            args=(self._model.args, self._decision.args, rungs),
            out=ExchangeRecord(rungs.out.theta, np.zeros(rungs.out.theta.shape[:2], np.int8)),
        )

    def finish(self, arguments: Arguments) -> tuple[State, Record]:
        """Return the state after the steps and their record, from the arguments of the finished loop."""
        *_, rungs = arguments.args
        exchange = arguments.out.exchange
        state, record = self._inner.finish(rungs)
        per_exchange = 0 if self._kept else self._target.n if self._full else self._m
        counted = record["n_lik"].astype(np.int64) + per_exchange * (exchange > 0)
        return state, {**record, "exchange": exchange, "n_lik": counted}


@piece
def _of_kept_sums(
    args: Any, batch: Any, points: Any, low: Any, high: Any, index: Any, draw: Any, work: Any
) -> Any:
    return points[-1][high, 1] - points[-1][low, 1], 0.0


def _of_all_data(total: Piece) -> Piece:
    @piece
    def compare(
        args: Any, batch: Any, points: Any, low: Any, high: Any, index: Any, draw: Any, work: Any
    ) -> Any:
        theta = points[0]
        return (total(args, theta[high]) - total(args, theta[low])) / np.float64(batch.n), 0.0

    return compare


def _of_minibatches(fill: Piece, difference: Piece) -> Piece:
    @piece
    def compare(
        args: Any, batch: Any, points: Any, low: Any, high: Any, index: Any, draw: Any, work: Any
    ) -> Any:
        theta, m = points[0], batch.m
        fill(index, m, u64(batch.n), draw, MINIBATCH, 0, work)
        sum_1, sum_2 = difference(args, index, m, theta[low], theta[high])
        mean, var = sum_1 / m, 0.0
        if batch.error_share > 0:
            var = np.nan
            if m > 1:
                var = max(sum_2 - sum_1 * mean, 0.0) / (m - 1) / m * batch.error_share
        return mean, var

    return compare


def _loop(body: Piece, compare: Piece, decide: Piece, log_prior: Piece) -> Piece:
    def loop(chains: Range, steps: Range, work: Any, arguments: Any) -> None:
        # Tuples are unpacked here, once: in the loops each unpacked array costs a reference count.
        keys, first_step = arguments.stream
        rungs, every, alternate, sign = arguments.settings.order
        batch = arguments.settings.batch
        n, energy_noise_var = batch.n, batch.energy_noise_var
        points, stopped = arguments.chains
        temperature, prior_power = arguments.schedule
        model, rule, inner = arguments.args
        out_theta, out_exchange = arguments.out
        index = np.empty(batch.drawn + 1, np.int64)
        theta = points[0]
        k = steps.first
        while k < steps.last:
            stop = min(steps.last, k + every - (first_step + k - 1) % every)
            body(chains, Range(k, stop), work, inner)
            k = stop
            if (first_step + stop - 1) % every != 0:
                continue
            time = (first_step + stop - 1) // every
            odd = 0
            if rungs > 2:
                odd = (
                    time % 2 if alternate else int(uniform(EXCHANGE, Draw(keys[2], u64(time), u64(0))) < 0.5)
                )
            key = keys[1] if odd else keys[0]
            time_of = u64(time)
            for start in range(chains.first, chains.last, rungs):
                for low in range(start + odd, start + rungs - 1, 2):
                    high = low + 1
                    draw = Draw(key, time_of, u64(low))
                    cold, hot = temperature[stop - 1, low], temperature[stop - 1, high]
                    mean, var = compare(model, batch, points, low, high, index, draw, work)
                    if energy_noise_var > 0:
                        mean += np.sqrt(energy_noise_var) * normals(u64(0), EXCHANGE, draw)[0]
                        var += energy_noise_var
                    power = sign * (prior_power[stop - 1, low] - prior_power[stop - 1, high])
                    offset = 0.0
                    if power != 0:
                        offset = power * (log_prior(model, theta[high]) - log_prior(model, theta[low]))
                    scale = sign * n * (1 / cold - 1 / hot)
                    made = decide(rule, offset + scale * mean, scale * scale * var, batch.m, draw)
                    if stopped[low] or stopped[high]:
                        made = False
                    out_exchange[low, stop - 1] = out_exchange[high, stop - 1] = MADE if made else REFUSED
                    if made:
                        for array in points:
                            for d in range(array.shape[1]):
                                array[low, d], array[high, d] = array[high, d], array[low, d]
                        for d in range(theta.shape[1]):
                            out_theta[low, stop - 1, d] = theta[low, d]
                            out_theta[high, stop - 1, d] = theta[high, d]

    return loop


class StagedExchange:
    """See `ReplicaExchange`: the rungs move in a compiled loop and exchange in torch."""

    def __init__(self, kernel: ReplicaExchange, inner: Loop, target: Target, key: int) -> None:
        self._kernel = kernel
        self._inner = inner
        self._target = target
        self._key = key

    @torch.no_grad()
    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the K steps from `first_step` on; every field of `controls` is (K, C)."""
        steps, chains = controls.step_size.shape
        draws = Draws(Streams(self._key, chains, self._target.device, compiled=True), first_step)
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
                state, outcome, n_lik, n_lik_overhead = self._kernel.exchange(
                    self._target, state, controls.temperature[stop - 1], draws
                )
                exchange[:, stop - 1] = outcome.numpy()
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
