"""The zig-zag sampler as one compiled loop."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from mhrun.compiled.loop import register
from mhrun.compiled.loop_inputs import (
    AliasSlots,
    Arguments,
    BlockLoop,
    ControlArrays,
    Range,
    Stream,
    record_arrays,
    record_of,
)
from mhrun.kernels import ZigZag
from mhrun.kernels.zig_zag import MOST, VELOCITY, too_wide
from mhrun.native import Draw, NativeBounds, Piece, piece, piece_once
from mhrun.native.forms import GRADIENT_ROUNDING, SLACK
from mhrun.native.philox import fill_arrivals
from mhrun.target import Target
from mhrun.types import Controls, Record, State

u64 = np.uint64


class QuadraticArrays(NamedTuple):
    """The arrays of `mhrun.target.quadratic.Quadratic`."""

    about: Any
    root: Any
    slope: Any
    curvature: Any
    prior_slope: Any
    prior_curvature: Any


class ZigZagSettings(NamedTuple):
    """The quadratic part of the log density, and the bounds of the remainders."""

    table: AliasSlots
    quadratic: QuadraticArrays


class ZigZagChains(NamedTuple):
    """The state of the chains, changed in place."""

    theta: Any  # (C, D)
    velocity: Any  # (C, D)
    wide: Any  # (C, 2): the arguments of `too_wide` of a chain that could not go on, otherwise 0


class ZigZagRecord(NamedTuple):
    """The record of each step, (C, K, ...)."""

    theta: Any
    accepted: Any
    batch_size: Any
    diverging: Any
    violations: Any


class ZigZagLoop(BlockLoop):
    """See `ZigZag`: the same step and the same random numbers, compiled."""

    def __init__(self, model: NativeBounds, target: Target, key: int, threads: int) -> None:
        assert model.slope is not None
        assert model.remainder is not None
        self._model = model
        super().__init__(piece_once(_loop, model.slope, model.remainder), target, key, threads)

    @classmethod
    def of(cls, kernel: ZigZag, target: Target, key: int, threads: int) -> ZigZagLoop | None:
        """Return the loop of a kernel, or None if the model has no compiled form."""
        model = target.bounded.native()
        if model is None or model.slope is None or model.remainder is None:
            return None
        return cls(model, target, key, threads)

    @cached_property
    def _table(self) -> AliasSlots:
        return AliasSlots.of(self._target)

    def prepare(self, state: State, first_step: int, controls: Controls) -> Arguments:
        """Return the arguments for the K steps from `first_step` on; every field of `controls` is (K, C)."""
        chains = controls.step_size.shape[1]
        theta = state.evaluation.theta.double().numpy().copy()
        quadratic = QuadraticArrays(*(np.ascontiguousarray(part.numpy()) for part in self._target.quadratic))
        return Arguments(
            stream=Stream.of(self._key, first_step),
            settings=ZigZagSettings(self._table, quadratic),
            chains=ZigZagChains(theta, state.aux[VELOCITY].numpy().copy(), np.zeros((chains, 2))),
            schedule=ControlArrays.of(controls, self._target),
            args=self._model.args,
            out=record_arrays(ZigZagRecord, controls, theta.shape[1]),
        )

    def finish(self, arguments: Arguments) -> tuple[State, Record]:
        """Return the state after the steps and their record, from the arguments of the finished loop."""
        theta, velocity, wide = arguments.chains
        if (stuck := wide[:, 0].nonzero()[0]).size:
            raise too_wide(*wide[stuck[0]])
        record = record_of(
            arguments.out, n_lik=0, n_lik_overhead=0, log_ratio=math.nan, log_ratio_var=math.nan
        )
        record["n_grad"] = 2 * record["batch_size"].astype(np.int64)
        evaluation = self._target.prior(torch.from_numpy(theta))
        return State(evaluation, {VELOCITY: torch.from_numpy(velocity)}), record


register(ZigZag, ZigZagLoop.of)


@piece
def _first_time(rate: Any, change: Any, exponential: Any) -> Any:
    """See `mhrun.kernels.zig_zag.first_times`."""
    if rate > 0:
        square = rate * rate + 2 * change * exponential
        return 2 * exponential / (rate + math.sqrt(square)) if square >= 0 else np.inf
    if change > 0:
        return (math.sqrt(2 * change * exponential) - rate) / change
    return np.inf


@piece
def _to_theta(reference: Any, root: Any, phi: Any, out: Any) -> None:
    """Write theta = reference + root phi."""
    for d in range(len(phi)):
        total = reference[d]
        for e in range(d + 1):
            total += root[d, e] * phi[e]
        out[d] = total


@piece
def _whiten(reference: Any, root: Any, theta: Any, out: Any) -> None:
    """Write phi = root^-1 (theta - reference), by forward substitution."""
    for d in range(len(theta)):
        residual = theta[d] - reference[d]
        for e in range(d):
            residual -= root[d, e] * out[e]
        out[d] = residual / root[d, d]


@piece
def _norm_in_metric(root: Any, gradient: Any, out: Any) -> Any:
    """Write root^T gradient and return its norm."""
    dim, square = len(gradient), 0.0
    for e in range(dim):
        total = 0.0
        for d in range(e, dim):
            total += root[d, e] * gradient[d]
        out[e] = total
        square += total * total
    return math.sqrt(square)


@piece
def _matrix(curvature: Any, prior: Any, beta: Any, power: Any, out: Any) -> None:
    for d in range(len(out)):
        for e in range(len(out)):
            out[d, e] = beta * curvature[d, e] + power * prior[d, e]


def _loop(slope: Piece, remainder: Piece) -> Piece:
    def loop(chains: Range, steps: Range, work: Any, arguments: Any) -> None:
        key, first_step = arguments.stream
        n, slots, total_weight = arguments.settings.table
        reference, root, known_slope, curvature, prior_slope, prior_curvature = arguments.settings.quadratic
        theta, velocity, wide = arguments.chains
        step_size, _, scale, prior_power = arguments.schedule
        args = arguments.args
        out_theta, out_accepted, out_size, out_diverging, out_violations = arguments.out
        dim = theta.shape[1]
        per = dim + 1
        index, coins, gaps, marks = np.empty(per, np.int64), np.empty(per), np.empty(per), np.empty(per)
        phi, point, matrix = np.empty(dim), np.empty(dim), np.empty((dim, dim))
        rate, change = np.empty(dim), np.empty(dim)
        remainder_grad, log_lik_grad = np.empty(dim), np.empty(dim)
        scratch = np.empty(dim)
        for c in range(chains.first, chains.last):
            v = velocity[c]
            for k in range(steps.first, steps.last):
                if wide[c, 0] > 0:
                    break
                _whiten(reference, root, theta[c], phi)  # theta, not phi, goes on from block to block
                draw = Draw(key, first_step + u64(k), u64(c))
                beta = scale[k, c] / np.float64(n)
                _matrix(curvature, prior_curvature, beta, prior_power[k, c], matrix)
                for d in range(dim):
                    total = beta * known_slope[d] + prior_power[k, c] * prior_slope[d]
                    slant = 0.0
                    for e in range(dim):
                        total += matrix[d, e] * phi[e]
                        slant += matrix[d, e] * v[e]
                    rate[d], change[d] = total, slant  # of the gradient, along the line
                longest = math.sqrt(1.0 / (beta * dim))
                time_left, event, size, wrong = step_size[k, c], 0, np.int64(0), 0
                while time_left > 0:
                    fill_arrivals(event * per, per, n, draw, index, coins, gaps, marks)
                    event += 1
                    soonest, coordinate = np.inf, 0
                    for d in range(dim):
                        time = _first_time(v[d] * rate[d], v[d] * change[d], gaps[d])
                        if time < soonest:
                            soonest, coordinate = time, d
                    line = min(longest, time_left)
                    until = min(soonest, line)
                    _to_theta(reference, root, phi, point)
                    size_here = slope(args, point)
                    for d in range(dim):
                        scratch[d] = phi[d] + line * v[d]
                    _to_theta(reference, root, scratch, point)
                    bound = beta * math.sqrt(dim) * total_weight * max(size_here, slope(args, point))
                    if not bound * time_left < MOST:
                        square = 0.0
                        for d in range(dim):
                            square += phi[d] * phi[d]
                        wide[c, 0], wide[c, 1] = bound * time_left, math.sqrt(square)
                        break
                    arrival = gaps[dim] / bound
                    arrives = arrival < until
                    time = arrival if arrives else until
                    for d in range(dim):
                        phi[d] += time * v[d]
                        rate[d] += time * change[d]
                    flips = -1
                    if arrives:
                        size += 1
                        slot = index[dim]
                        i = slot if coins[dim] < slots[slot, 0] else np.int64(slots[slot, 1])
                        _to_theta(reference, root, phi, point)
                        remainder(args, i, point, remainder_grad, log_lik_grad)
                        allowed = GRADIENT_ROUNDING * _norm_in_metric(root, log_lik_grad, scratch)
                        norm = _norm_in_metric(root, remainder_grad, scratch)
                        weight = slots[i, 2]
                        bounded = norm <= weight * slope(args, point) * (1 + SLACK) + allowed
                        wrong += not (bounded and norm < np.inf)
                        share, sum_so_far = beta * total_weight / (weight * bound), 0.0
                        for d in range(dim):
                            sum_so_far += share * max(-v[d] * scratch[d], 0.0)
                            if marks[dim] < sum_so_far:
                                flips = d
                                break
                    elif soonest <= until:
                        flips = coordinate
                    if flips >= 0:
                        v[flips] = -v[flips]
                        for d in range(dim):
                            change[d] += 2 * matrix[d, flips] * v[flips]
                    time_left = time_left - time if time < time_left else 0.0
                finite = True
                _to_theta(reference, root, phi, theta[c])
                for d in range(dim):
                    out_theta[c, k, d] = theta[c, d]
                    finite = finite and np.isfinite(phi[d])
                out_accepted[c, k] = finite
                out_size[c, k] = size
                out_diverging[c, k] = not finite
                out_violations[c, k] = wrong

    return loop
