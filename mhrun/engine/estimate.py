"""Estimates of a run's time, evaluations and memory, measured before it starts."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mhrun.durations import describe_duration
from mhrun.engine.choices import Choices, recorded_choices
from mhrun.engine.cost import step_seconds
from mhrun.engine.disk_space import trace_bytes
from mhrun.engine.execution.executors import COMPILED, choose_executor, measured_threads, recordings_of
from mhrun.engine.execution.graph import GRAPH
from mhrun.engine.execution.module_evaluation import choose_evaluation
from mhrun.engine.execution.threads import limited, torch_threads
from mhrun.engine.jobs import separable
from mhrun.engine.machine import keep_memory
from mhrun.engine.method import Method
from mhrun.engine.settings import Settings
from mhrun.monitors import Monitor
from mhrun.random import MANY
from mhrun.store.blocks import steps_done
from mhrun.types import State

_TRIED = 1.0  # seconds of a trial of a method
# Seconds above which a first step is not repeated, as compiling and reading data take less, nor an observation of some
# chains, which is not compiled.
_LONG_STEP, _LONG_OBSERVATION = 30.0, 5.0
_OBSERVED_CHAINS = 4  # chains that are observed for the time of an observation of all
_WORTH = 60.0  # guessed duration in seconds above which a run is tried
_COMPILED_FACTOR = 20.0  # a compiled loop is so many times faster than the guess, which is of torch


class Pace(NamedTuple):
    """The cost of a step, and the state after the last step of the trial."""

    seconds: float
    n_lik: float  # log-likelihoods of single data, of all chains
    n_grad: float
    state: State


class Cost(NamedTuple):
    """The remaining work of a method. The second number of a pair is the upper bound."""

    method: str
    chains: int
    steps: int
    monitor_runs: int
    seconds: tuple[float, float]
    n_lik: tuple[float, float]  # of all chains; monitors read other data and are not counted here
    n_grad: tuple[float, float]
    disk: int  # upper bound in bytes: blocks and trace, all steps

    @property
    def line(self) -> str:
        """The cost in a line."""
        chains = f"{self.chains:,} chain{'s' * (self.chains > 1)}"
        monitor_runs = (
            f" with {self.monitor_runs:,} monitor run{'s' * (self.monitor_runs > 1)}"
            if self.monitor_runs
            else ""
        )
        return f"{self.method}: {self.steps:,} steps of {chains}{monitor_runs}, {about(self.seconds)}"


def estimate_pays(methods: Sequence[tuple[Method, Path]], settings: Settings) -> bool:
    """Return whether the unfinished steps are expected to take so long that a trial is worth its time."""

    def guess(method: Method) -> float:
        fast = choose_executor(method, settings.executor, None, settings.threads).name == COMPILED
        return step_seconds(method) / (_COMPILED_FACTOR if fast else 1.0)

    work = [(m, max(0, m.shape.total - steps_done(folder))) for m, folder in methods]
    return sum(guess(m) * (steps + m.kernel.extra(steps)[1]) for m, steps in work if steps) >= _WORTH


def estimate(
    methods: Sequence[tuple[Method, Path]],
    settings: Settings,
    jobs: int = 1,
    known: Mapping[str, Cost] | None = None,
) -> list[str]:
    """Return a line for each unfinished method and one for the total, from a short trial whose steps are discarded.

    Args:
        methods: with their folders.
        settings: how they will run.
        jobs: worker processes, see `total`.
        known: costs by method that need no trial here.
    """
    known = known or {}
    estimates = [cost for m, folder in methods for cost in _known_or_tried(known, m, folder, settings)]
    separable_names = {method.name for method in separable([m for m, _ in methods], settings.threads)}
    seconds = total(estimates, jobs, separable_names)
    return [*(cost.line for cost in estimates), f"in all {about(seconds)}"] if estimates else []


def _known_or_tried(
    known: Mapping[str, Cost], method: Method, folder: Path, settings: Settings
) -> list[Cost]:
    return [known[method.name]] if method.name in known else costs([(method, folder)], settings)


def costs(
    methods: Sequence[tuple[Method, Path]], settings: Settings, tried: float | None = None
) -> list[Cost]:
    """Return the remaining work of each unfinished method; nothing is written.

    Args:
        methods: with their folders, which need not exist.
        settings: how they will run.
        tried: seconds of each trial; None for the default.
    """
    tried = _TRIED if tried is None else tried
    work = [(m, max(0, m.shape.total - steps_done(folder)), folder) for m, folder in methods]
    return [_cost(m, steps, folder, settings, tried) for m, steps, folder in work if steps]


def total(estimates: Sequence[Cost], jobs: int = 1, together: Container[str] = ()) -> tuple[float, float]:
    """Return the total seconds and their upper bound.

    Args:
        estimates: the costs of the methods.
        jobs: processes that share the methods `together`, the longest first, at full speed each.
        together: names of those methods; the others run one after the other.
    """

    def seconds(end: int) -> float:
        busy = [0.0] * jobs
        for duration in sorted(
            (cost.seconds[end] for cost in estimates if cost.method in together), reverse=True
        ):
            heapq.heapreplace(busy, busy[0] + duration)
        return max(busy) + sum(cost.seconds[end] for cost in estimates if cost.method not in together)

    return seconds(0), seconds(1)


def _cost(method: Method, steps: int, folder: Path, settings: Settings, trial_seconds: float) -> Cost:
    pace = _mean_pace(method, steps, settings, recorded_choices(folder), trial_seconds)
    least, most = method.kernel.extra(steps)
    monitor_runs, monitor_seconds = _monitor_cost(method, method.shape.total - steps, pace.state)

    def bounds(per_step: float, extra: float = 0.0) -> tuple[float, float]:
        return (steps + least) * per_step + extra, (steps + most) * per_step + extra

    return Cost(
        method.name,
        method.shape.chains,
        steps,
        monitor_runs,
        bounds(pace.seconds, monitor_seconds),
        bounds(pace.n_lik),
        bounds(pace.n_grad),
        trace_bytes(method),
    )


def _mean_pace(method: Method, steps: int, settings: Settings, begun: Choices, trial_seconds: float) -> Pace:
    """Return the mean cost of the last `steps` steps; kernels declare when the cost of a step increases."""
    last_step = method.shape.total
    edges = [*(first for first in method.kernel.stages() if first <= last_step), last_step + 1]
    parts = [(first, last - max(first, last_step - steps + 1)) for first, last in pairwise(edges)]
    parts = [(first, count) for first, count in parts if count > 0]
    paces = [
        (_pace(method, settings, begun, trial_seconds / len(parts), first), count) for first, count in parts
    ]
    return Pace(
        sum(pace.seconds * count for pace, count in paces) / steps,
        sum(pace.n_lik * count for pace, count in paces) / steps,
        sum(pace.n_grad * count for pace, count in paces) / steps,
        paces[-1][0].state,
    )


def _pace(method: Method, settings: Settings, begun: Choices, trial_seconds: float, stage: int) -> Pace:
    with limited(torch_threads(method, settings.threads)), method.exact_products():
        return _pace_of_steps(method, settings, begun, trial_seconds, stage)


def _pace_of_steps(
    method: Method, settings: Settings, begun: Choices, trial_seconds: float, stage: int
) -> Pace:
    if method.target.dim >= MANY:
        keep_memory()  # as in the run
    executor = choose_executor(method, settings.executor, begun.executor, settings.threads)
    state = method.first_state()
    executor.prepare(state)
    choose_evaluation(method, begun.evaluation)
    torch.set_num_threads(settings.threads or begun.torch_threads or measured_threads(method, executor))
    memory, count, spent, first_time = method.plan.start(), 1, 0.0, True
    # The work before the first step is not representative.
    first = min(stage + 1, method.shape.total)
    while spent < trial_seconds:
        size = min(
            count,
            method.plan.steps_until_update(first) or count,
            method.kernel.steps_until_extra(first) or count,  # `_cost` adds extra work
            method.shape.total - first + 1,
        )
        controls = method.plan.controls(memory, first, size)
        began, recordings = time.perf_counter(), recordings_of(executor)
        after, record = executor.advance(state, first, controls)
        spent = time.perf_counter() - began
        if recordings_of(executor) > recordings:  # once in a run
            spent = 0.0
            continue
        # The first time may include compilation, which takes minutes for a graph
        if first_time and (spent < _LONG_STEP or executor.name == GRAPH):
            spent, first_time = 0.0, False
            continue
        if size < count:
            break
        count *= 4
    n_lik, n_grad = (float(record[name].sum()) / size for name in ("n_lik", "n_grad"))
    return Pace(spent / size, n_lik, n_grad, after)


def _monitor_cost(method: Method, done: int, state: State) -> tuple[int, float]:
    """Return the number of monitor runs left after `done` steps, and their seconds.

    A run emits metrics, takes a snapshot, does both, or neither. One of each kind is timed.
    """
    monitor = method.monitor
    if monitor is None:
        return 0, 0.0
    counts: Counter[tuple[bool, bool]] = Counter()
    latest: dict[tuple[bool, bool], int] = {}
    step = done
    while (step := step + monitor.steps_until_due(step + 1)) <= method.shape.total:
        kind = monitor.emits(step), monitor.takes_snapshot(step)
        counts[kind] += 1
        latest[kind] = step
    seconds = sum(
        counts[kind] * _observation_seconds(method, monitor, step, state) for kind, step in latest.items()
    )
    return sum(counts.values()), seconds


def _observation_seconds(method: Method, monitor: Monitor, step: int, state: State) -> float:
    """Return the seconds of one run of the monitor after `step`.

    Hundreds of networks on all test data take minutes: the time of one or a few, to which it is proportional, is
    enough.
    """
    theta, valid, chains = method.target.points(state), state.aux.get("valid"), method.shape.chains

    def seconds(count: int) -> float:
        some_valid = None if valid is None else valid[:count]
        return _timed(method, monitor, step, theta[:count], some_valid)

    least = monitor.together
    few = -(-_OBSERVED_CHAINS // least) * least
    # The first time may include reading the data.
    is_slow = seconds(least) * chains / least > _LONG_OBSERVATION
    for count in (least, few) if is_slow else (few,):
        if count < chains and (found := seconds(count) * chains / count) > _LONG_OBSERVATION:
            return found
    return seconds(chains)


def _timed(method: Method, monitor: Monitor, step: int, theta: Tensor, valid: Tensor | None) -> float:
    memory = monitor.start(method.target, len(theta))
    began = time.perf_counter()
    with torch.no_grad():
        monitor.observe(method.target, memory, step, theta, valid)
    _wait(method.target.device)
    return time.perf_counter() - began


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def about(seconds: tuple[float, float]) -> str:
    """Return a range of seconds in words."""
    least, most = map(describe_duration, seconds)
    return f"about {least}" if least == most else f"between {least} and {most}"
