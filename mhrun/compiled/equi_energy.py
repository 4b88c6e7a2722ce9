"""Ladders with equi-energy jumps as one compiled loop over ladders, steps and rungs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from mhrun.compiled.loop import register
from mhrun.compiled.loop_inputs import Arguments, BlockLoop, Range, Stream, record_arrays, record_of
from mhrun.exchanges import MADE, NEVER, REFUSED
from mhrun.kernels import EquiEnergy
from mhrun.kernels.bank import ENERGY, SEEN, STAMP, THETA
from mhrun.native import (
    Draw,
    NativeDecision,
    NativeModel,
    Piece,
    compiled_once,
    native_form,
    piece,
    piece_once,
    routine,
)
from mhrun.native.indices import Workspaces, filler
from mhrun.native.philox import ACCEPT, EXCHANGE, MINIBATCH, PROPOSAL, USE, fill_normals, uniform
from mhrun.proposals.langevin import LangevinProposal
from mhrun.target import Target
from mhrun.types import Controls, Evaluation, Record, State

u64 = np.uint64


class JumpSettings(NamedTuple):
    """The settings of a ladder with jumps; see `EquiEnergy`."""

    n: Any  # uint64, number of data
    sizes: Any  # (R,) minibatch sizes of the rungs
    jump: Any
    spacing: Any
    every: Any
    stagger: Any
    burn: Any
    latest: Any


class EnergyAnchor(NamedTuple):
    """The point from which energies are measured."""

    differences: Any  # whether energies are measured from it
    lowest: Any  # H_0
    total: Any  # its log-likelihood on all data
    values: Any  # (nodes,) its log-likelihoods


class EquiEnergySettings(NamedTuple):
    """How a ladder jumps, and what its energies are measured from."""

    jumps: JumpSettings
    anchor: EnergyAnchor


class EquiEnergyChains(NamedTuple):
    """The state of the chains, and the banks between rungs, changed in place."""

    theta: Any  # (C, D)
    energy: Any  # (C,)
    grad: Any  # (C, D)
    stamp: Any  # (C,)
    bank_theta: Any  # of the entries, as are the next two
    bank_energy: Any
    bank_stamp: Any
    bank_seen: Any  # number of entries so far


# Names in `State.aux` of the fields of `EquiEnergyChains` after theta.
KEPT = ("energy", "grad", "stamp", THETA, ENERGY, STAMP, SEEN)


class EquiEnergyControls(NamedTuple):
    """The controls of a block, (K, C) each."""

    step_size: Any
    temperature: Any
    noise_temperature: Any


class EquiEnergyRecord(NamedTuple):
    """The record of each step, (C, K, ...)."""

    theta: Any
    accepted: Any
    log_ratio: Any
    log_ratio_var: Any
    batch_size: Any
    n_lik: Any
    n_grad: Any
    diverging: Any
    exchange: Any
    valid: Any


class EquiEnergyLoop(BlockLoop):
    """See `EquiEnergy`: the same step and the same random numbers, compiled, with Langevin moves."""

    def __init__(
        self, kernel: EquiEnergy, model: NativeModel, threshold: Piece, target: Target, key: int, threads: int
    ) -> None:
        assert model.sums is not None
        self._kernel = kernel
        self._model = model
        self._sums = model.sums
        pieces = (filler(target.n), threshold, model.log_prior, model.sums.gather, model.sums.score)
        work = Workspaces(target.n, max((m for m in kernel.sizes if m < target.n), default=0))
        super().__init__(piece_once(_loop, *pieces), target, key, threads, work=work, rungs=kernel.rungs)

    @classmethod
    def of(cls, kernel: EquiEnergy, target: Target, key: int, threads: int) -> EquiEnergyLoop | None:
        """Return the loop of a kernel, or None if one of its parts has no compiled form."""
        if type(kernel.proposal) is not LangevinProposal or not kernel.proposal.ratio:
            return None
        form = native_form(kernel.rule, "native", "decide")
        threshold = form() if form is not None else None
        model = target.native(full=True)
        if threshold is None or isinstance(threshold, NativeDecision) or model is None or model.sums is None:
            return None
        return cls(kernel, model, threshold, target, key, threads)

    def prepare(self, state: State, first_step: int, controls: Controls) -> Arguments:
        """Return the arguments for the K steps from `first_step` on; every field of `controls` is (K, C).

        Banks are not copied: the loop writes to those of the state.
        """
        kernel, target, aux = self._kernel, self._target, dict(state.aux)
        theta = state.evaluation.theta.double().numpy().copy()
        for name in ("energy", "grad", "stamp"):
            aux[name] = aux[name].clone()
        point = kernel.energies.point(target).numpy().copy()
        values, grad = np.empty(self._sums.size), np.empty(len(point))
        score = compiled_once(_anchored, self._sums.score)
        score(self._model.args, self._sums.whole, point, grad, values)
        lowest, total = kernel.energies.lowest(target)
        schedule = (controls.step_size, controls.temperature, controls.noise_temperature)
        return Arguments(
            stream=Stream.of(self._key, first_step),
            settings=EquiEnergySettings(
                JumpSettings(
                    n=u64(target.n),
                    sizes=np.asarray(kernel.sizes, np.int64),
                    jump=kernel.jump,
                    spacing=kernel.spacing,
                    every=kernel.every,
                    stagger=kernel.stagger,
                    burn=kernel.burn,
                    latest=kernel.latest,
                ),
                EnergyAnchor(kernel.energies.differences, lowest, total, values),
            ),
            chains=EquiEnergyChains(theta, *(aux[name].numpy() for name in KEPT)),
            schedule=EquiEnergyControls(*(values.numpy() for values in schedule)),
            args=(self._model.args, self._sums.whole),
            out=record_arrays(EquiEnergyRecord, controls, theta.shape[1]),
        )

    def finish(self, arguments: Arguments) -> tuple[State, Record]:
        """Return the state after the steps and their record, from the arguments of the finished loop."""
        theta, *kept = (torch.from_numpy(array) for array in arguments.chains)
        log_prior = self._target.model.log_prior(theta).double()
        aux = dict(zip(KEPT, kept, strict=True))
        return State(Evaluation(theta, log_prior), aux), record_of(arguments.out, n_lik_overhead=0)


def _anchored(score: Piece) -> Piece:
    def alone(args: Any, weights: Any, theta: Any, grad: Any, values: Any) -> Any:
        return score(args, weights, theta, grad, values)

    return alone


@piece
def _gap(to: Any, origin: Any, grad: Any, step: Any, pulled: Any) -> Any:
    """The squared norm of to - origin - step grad, or of to - origin without drift."""
    total, drift = 0.0, step if pulled else 0.0
    for d in range(len(to)):
        gap = to[d] - origin[d] - drift * grad[d]
        total += gap * gap
    return total


@piece
def _set_levels(levels: Any, lowest: Any, spacing: Any, temperature: Any, first: Any) -> None:
    """Set the levels: the lowest energy, each next `spacing` temperatures of the colder rung above it, infinity."""
    rungs = len(levels) - 1
    levels[0] = lowest
    for r in range(1, rungs):
        levels[r] = levels[r - 1] + spacing * temperature[first + r - 1]
    levels[rungs] = np.inf


@piece
def _ring(energy: Any, levels: Any) -> Any:
    """The ring that an energy is in; what lies below all levels is in the first."""
    ring = 0
    for j in range(1, len(levels) - 1):
        ring += 1 if energy >= levels[j] else 0
    return ring


@piece
def _variance(weights: Any, before: Any, after: Any, m: Any) -> Any:
    """The variance of a minibatch's m terms, from their weights on the nodes; NaN for a single one."""
    if m == 1:
        return np.nan
    total, squares = 0.0, 0.0
    for s in range(len(weights)):
        gain = after[s] - before[s]
        total += weights[s] * gain
        squares += weights[s] * gain * gain
    return max(squares - total * total / m, 0.0) / (m - 1)


@piece
def _slot(n_seen: Any, capacity: Any, latest: Any, draw: Any) -> Any:
    """The slot of the next entry of a bank, given the number seen so far; at `capacity` or above it is not kept.

    A full bank keeps the latest entries, or a uniform sample of all (Vitter 1985, algorithm R).
    """
    if latest:
        return n_seen % capacity
    if n_seen < capacity:
        return n_seen
    return np.int64(uniform(EXCHANGE + u64(2) * USE, draw) * np.float64(n_seen + 1))


@routine
def _entry(energies: Any, filled: Any, low: Any, high: Any, u: Any) -> Any:
    """The index of a uniformly drawn entry of a ring, or -1 if the ring is empty."""
    count = 0
    for s in range(filled):
        count += 1 if low <= energies[s] < high else 0
    rank = np.int64(u * count)
    for s in range(filled):
        if low <= energies[s] < high:
            if rank == 0:
                return s
            rank -= 1
    return -1


def _loop(fill: Piece, threshold: Piece, log_prior: Piece, gather: Piece, score: Piece) -> Piece:
    def loop(chains: Range, steps: Range, work: Any, arguments: Any) -> None:
        # Tuples are unpacked here, once: in the loops each unpacked array costs a reference count.
        key, first_step = arguments.stream
        n, sizes, jump, spacing, every, stagger, burn, latest = arguments.settings.jumps
        differences, lowest, at_anchor, anchored = arguments.settings.anchor
        theta, energy, grad, stamp, bank_theta, bank_energy, bank_stamp, bank_seen = arguments.chains
        step_size, temperature, noise = arguments.schedule
        model, all_weights = arguments.args
        out = arguments.out
        out_theta, out_accepted, out_log_ratio, out_var, out_size = out[:5]
        out_lik, out_grad, out_diverging, out_exchange, out_valid = out[5:]
        dim, rungs, nodes = theta.shape[1], len(sizes), len(all_weights)
        capacity, data = bank_theta.shape[1], np.float64(n)
        largest = sizes[0]
        index = np.empty(largest + 1, np.int64)
        weights, before, after = np.empty(nodes), np.empty(nodes), np.empty(nodes)
        pull, far, to, z = np.empty(dim), np.empty(dim), np.empty(dim), np.empty(dim)
        levels = np.empty(rungs + 1)
        for ladder in range(chains.first // rungs, chains.last // rungs):
            for k in range(steps.first, steps.last):
                step = first_step + u64(k)
                _set_levels(levels, lowest, spacing, temperature[k], ladder * rungs)
                # From cold to hot: a jump must not see what the hotter rung adds in this step.
                for r in range(rungs):
                    c, m = ladder * rungs + r, sizes[r]
                    draw, full = Draw(key, step, u64(c)), m == np.int64(n)
                    steps_done = np.int64(step) - (rungs - 1 - r) * stagger
                    t, e, floor = temperature[k, c], step_size[k, c], levels[r]
                    accept, log_ratio, var = False, np.nan, np.nan
                    n_lik, n_grad, exchange, bad = 0, 0, NEVER, False
                    place, row = -1, ladder * (rungs - 1) + r
                    if steps_done > 0 and r < rungs - 1 and uniform(EXCHANGE, draw) < jump:
                        ring = _ring(energy[c], levels)
                        low = -np.inf if ring == 0 else levels[ring]
                        u = uniform(EXCHANGE + USE, draw)
                        filled = min(bank_seen[row], capacity)
                        place = _entry(bank_energy[row], filled, low, levels[ring + 1], u)
                    jumping = place >= 0
                    if steps_done > 0:
                        # The data, if not all: a minibatch of this step, or the continuation of an entry's minibatch.
                        entry_size, mark = 0, np.int64(step) * rungs + r
                        if jumping:
                            entry_size, mark = sizes[r + 1], bank_stamp[row, place]
                        if not full and entry_size < m:
                            owner = u64(ladder * rungs + mark % rungs)
                            fill(index, m, n, Draw(key, u64(mark // rungs), owner), MINIBATCH, 0, work)
                            gather(model, index[entry_size:], m - entry_size, weights)
                        at = all_weights if full else weights
                        away, base = 0.0, 0.0  # of a minibatch, and of all data, at the anchor
                        if differences and not full:
                            base = at_anchor
                            for s in range(nodes):
                                away += weights[s] * anchored[s]
                        if jumping:
                            for d in range(dim):
                                to[d] = bank_theta[row, place, d]
                        else:
                            if full:
                                for d in range(dim):
                                    pull[d] = grad[c, d]
                            else:
                                stamp[c] = mark
                                total = score(model, at, theta[c], pull, before) - away
                                energy[c] = -total * (data / m) - base - log_prior(model, theta[c])
                                for d in range(dim):
                                    pull[d] *= data / m
                            fill_normals(z, PROPOSAL, draw)
                            pulled = energy[c] >= floor
                            drift, spread = e if pulled else 0.0, math.sqrt(2 * e * noise[k, c])
                            for d in range(dim):
                                to[d] = theta[c, d] + drift * pull[d] + spread * z[d]
                        prior, total = log_prior(model, to), 0.0
                        if full or entry_size < m:
                            total = score(model, at, to, far, after) - away
                        if jumping:
                            new_energy = bank_energy[row, place]
                            if full and entry_size < m:
                                new_energy = -total - prior
                            elif entry_size < m:
                                total -= (new_energy + prior + base) * (entry_size / data)
                                new_energy = -total * (data / m) - base - prior
                            over = levels[r + 1]
                            log_ratio = (max(energy[c], floor) - max(new_energy, floor)) / t
                            log_ratio -= (max(energy[c], over) - max(new_energy, over)) / temperature[
                                k, c + 1
                            ]
                        else:
                            new_energy = -total * (data / m) - base - prior
                            var = 0.0 if full else np.nan
                            if not full:
                                for d in range(dim):
                                    far[d] *= data / m
                                var = _variance(weights, before, after, m)
                                var *= (data / t) ** 2 / m * (1.0 - m / data)
                            n_grad = m if full else 2 * m
                            n_lik = n_grad + (m if differences and not full else 0)
                            backward_gap = _gap(theta[c], to, far, e, new_energy >= floor)
                            log_ratio = (max(energy[c], floor) - max(new_energy, floor)) / t
                            log_ratio += (_gap(to, theta[c], pull, e, pulled) - backward_gap) / (
                                4 * e * noise[k, c]
                            )
                        accept = threshold(uniform(ACCEPT, draw)) < log_ratio
                        bad = log_ratio != log_ratio
                        if jumping:
                            n_lik, n_grad = m - entry_size, m if accept and full else 0
                            if full and entry_size < m:
                                n_lik = m
                            elif differences:
                                n_lik *= 2
                            exchange = MADE if accept else REFUSED
                            stamp[c] = mark if accept else stamp[c]
                        if accept:
                            energy[c] = new_energy
                            if full:
                                for d in range(dim):
                                    grad[c, d] = far[d]
                    if accept:
                        for d in range(dim):
                            theta[c, d] = to[d]
                    steps_after_burn = steps_done - burn
                    if r > 0 and steps_after_burn > 0 and steps_after_burn % every == 0:
                        row -= 1
                        slot = _slot(bank_seen[row], capacity, latest, draw)
                        bank_seen[row] += 1
                        if slot < capacity:
                            bank_energy[row, slot], bank_stamp[row, slot] = energy[c], stamp[c]
                            for d in range(dim):
                                bank_theta[row, slot, d] = theta[c, d]
                    for d in range(dim):
                        out_theta[c, k, d] = theta[c, d]
                    out_accepted[c, k], out_log_ratio[c, k], out_var[c, k] = accept, log_ratio, var
                    out_size[c, k] = m if steps_done > 0 else 0
                    out_lik[c, k], out_grad[c, k] = n_lik, n_grad
                    out_diverging[c, k], out_exchange[c, k], out_valid[c, k] = bad, exchange, steps_done > 0

    return loop


register(EquiEnergy, EquiEnergyLoop.of)
