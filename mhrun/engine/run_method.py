"""Runs a method to its end, resuming from its folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mhrun.diagnostics.ladders import EXCHANGE_RATES, RUNGS, TEMPERATURES, exchange_rates
from mhrun.engine.choices import Choices, record_choices, recorded_choices
from mhrun.engine.diagnosis.diagnose import Diagnosis
from mhrun.engine.execution.executors import COMPILED, Executor, choose_executor, measured_threads
from mhrun.engine.execution.module_evaluation import choose_evaluation
from mhrun.engine.execution.threads import limited, torch_threads
from mhrun.engine.machine import keep_memory
from mhrun.engine.method import Method, target_attributes
from mhrun.engine.position import Position, position_after
from mhrun.engine.settings import CHUNK_BYTES, Settings
from mhrun.engine.watcher import Watcher
from mhrun.errors import Interrupted, UserError, after_step
from mhrun.random import MANY
from mhrun.store.blocks import TraceWriter, clear, damage, done
from mhrun.store.files import remove
from mhrun.store.longer import forget_shorter
from mhrun.store.netcdf import KINETIC, STEP_SIZE, TRACE
from mhrun.store.reference import prepare_reference
from mhrun.store.sharing import ANY_STEPS_DIGEST, DIGEST, STEPS, steps_of
from mhrun.types import INFO_DTYPES, Controls, Record

_STOPPED_SECONDS = 10.0  # left, above which it is reported that all chains have stopped
_SILENT_SECONDS = 1.0  # of compilation before it is reported
_CHUNK_SECONDS = 0.25  # seconds between updates of progress and checks for a stop
_MAX_WRITING_SHARE = 0.05  # largest share of the time spent on writing states


def run_method(
    method: Method,
    folder: Path,
    settings: Settings,
    watcher: Watcher,
    stop: Callable[[], bool],
    attributes: Mapping[str, Any],
) -> dict[str, Any]:
    """Run `method` in `folder` to its end, resuming from the folder's content, and return its summary.

    Raises:
        Interrupted: `stop` requested it; all results so far are in the folder.
        UserError: the disk is full or cannot be written, or a term exceeds the model's bound.

    Results whose checksums do not match are recomputed.
    """
    if (summary := _finished(method, folder, watcher)) is not None:
        return summary
    if method.target.dim >= MANY:
        keep_memory()
    with (
        limited(torch_threads(method, settings.threads)),
        method.exact_products(),
        TraceWriter(folder, method.shape, INFO_DTYPES, method.target.n) as writer,
    ):
        setup = prepare_reference(method.target, folder)  # first: a compiled loop reads the surrogate
        executor = _recorded_executor(method, folder, settings, watcher)
        position = position_after(method, writer.resume(watcher.note))
        with _announced(watcher, f"{method.name}: compiling its loop, or loading it from the cache"):
            executor.prepare(position.state)
        writer.start_clock()
        watcher.begin(method.name, position.step, method.shape.total, executor.name)
        position = _to_the_end(method, position, executor, writer, settings, watcher, stop)
        with after_step(position.step):
            diagnosis = Diagnosis(method, watcher.note)
            last = method.plan.controls(position.memory, position.step, 1)
            facts = _facts(method, last, executor) | diagnosis.of_state(position.state, last)
            facts |= {name: attributes[name] for name in (DIGEST, ANY_STEPS_DIGEST) if name in attributes}
            attributes = {**attributes, **target_attributes(method), STEP_SIZE: facts["step_size"]}
            attributes |= {name: facts[name] for name in (KINETIC,) if name in facts}
            attributes |= _of_ladder(method, writer.totals, facts["temperature"])
            writer.finish(attributes, facts | setup, lambda: diagnosis.of_draws(folder, position.state))
    watcher.end(method.name)
    summary = done(folder)
    assert summary is not None
    return summary


def _facts(method: Method, last: Controls, executor: Executor) -> dict[str, Any]:
    """Return how the last step of a method was made, for its summary."""
    return {
        STEPS: method.shape.steps,
        "executor": executor.name,
        "step_size": last.step_size[0].tolist(),
        "temperature": last.temperature[0].tolist(),
        "torch_threads": torch.get_num_threads(),
    }


def _of_ladder(method: Method, totals: Mapping[str, Any], temperatures: Sequence[float]) -> dict[str, Any]:
    """Return the attributes that the trace of a ladder has."""
    rungs = method.kernel.rungs
    attributes: dict[str, Any] = {RUNGS: rungs, TEMPERATURES: temperatures[:rungs]} if rungs > 1 else {}
    if method.kernel.exchange_every is not None and (exchanges := exchange_rates(totals, rungs)):
        attributes[EXCHANGE_RATES] = exchanges.rates.tolist()
    return attributes


def _to_the_end(
    method: Method,
    position: Position,
    executor: Executor,
    writer: TraceWriter,
    settings: Settings,
    watcher: Watcher,
    stop: Callable[[], bool],
) -> Position:
    """Run all steps from `position` on, with a block on disk every few seconds, and return the last position."""
    count, blocks = 16, _Blocks(writer, settings)
    total, since, accepted, have_stopped = method.shape.total, position.step, 0.0, False
    while position.step < total:
        began, before = time.monotonic(), position.step
        with after_step(before):
            position, record, due = _advanced(method, position, executor, writer, count)
        seconds, size = time.monotonic() - began, position.step - before
        accepted += float(record["accepted"].mean()) * size
        watcher.advance(
            method.name,
            position.step,
            _accept_rate(method, position.step, writer, accepted / (position.step - since)),
            *(int(writer.totals[k].sum()) for k in ("n_lik", "n_grad")),
        )
        all_stopped = not method.kernel.decides and bool(record["diverging"][:, -1].all())
        if all_stopped and not have_stopped and (total - position.step) * seconds / size > _STOPPED_SECONDS:
            have_stopped = True
            watcher.note(
                f"{method.name}: all chains have become non-finite by step {position.step:,}, and the steps that are "
                "left change nothing: stop the run and lower the step size."
            )
        # The ends of chunks change no number, only progress and memory.
        if size == count or (due and seconds > _CHUNK_SECONDS):
            count = steps_at_once(method, executor.name, count, seconds)
        full, stopping, ended = blocks.are_due(), stop(), position.step == total
        if full or stopping or ended:
            blocks.commit(position)
        if stopping and not ended:
            raise Interrupted(f"{method.name} stopped after step {position.step:,} of {total:,}")
        if full and not ended:
            writer.convert()
    return position


class _Blocks:
    """The blocks of steps on disk, written at intervals of time and memory.

    Args:
        writer: of the blocks.
        settings: with the bytes of a block and the seconds between two; 0 seconds for one after each stretch of steps.
    """

    def __init__(self, writer: TraceWriter, settings: Settings) -> None:
        self._writer, self._settings = writer, settings
        self._last, self._wait = time.monotonic(), settings.block_seconds

    def are_due(self) -> bool:
        """Return whether a block is to be written."""
        is_late = time.monotonic() - self._last > self._wait
        return is_late or self._writer.pending_bytes() > self._settings.block_bytes

    def commit(self, position: Position) -> None:
        """Write a block up to a position; the next is later where writing takes long."""
        began = time.monotonic()
        self._writer.commit(position.checkpoint())
        self._last = time.monotonic()
        if self._settings.block_seconds:
            self._wait = max(self._settings.block_seconds, (self._last - began) / _MAX_WRITING_SHARE)


def _accept_rate(method: Method, step: int, writer: TraceWriter, since_start: float) -> float | None:
    """Return the acceptance rate after burn-in, which tables have too, or during it the rate since this start.

    None of a method without an acceptance test.
    """
    if not method.kernel.decides:
        return None
    after = step - method.shape.warmup
    if after <= 0:
        return since_start
    return float(writer.totals["sum_accepted"].sum()) / (method.shape.chains * after)


def _advanced(
    method: Method, position: Position, executor: Executor, writer: TraceWriter, count: int
) -> tuple[Position, Record, bool]:
    """Run at most `count` steps and append them to the trace.

    Returns:
        The position after them, their record, and whether the monitor was due, or there is none.
    """
    step, monitoring = position.step, position.monitoring
    size = min(count, method.shape.total - step, method.plan.steps_until_update(step + 1) or count)
    until = monitoring.steps_until_due(step + 1) if monitoring is not None else size
    size = min(size, until)
    controls = method.plan.controls(position.memory, step + 1, size)
    state, record = executor.advance(position.state, step + 1, controls)
    check_bounds(method, record, step + 1)
    memory = method.plan.learn(position.memory, step + 1, torch.from_numpy(record["accepted"].T.copy()))
    writer.append(step + 1, record)
    step += size
    if monitoring is not None:
        metrics = monitoring.after(step, size, size == until, state, record, controls)
        if metrics is not None:
            writer.note(step, metrics)
    return Position(step, state, memory, monitoring), record, size == until


def _finished(method: Method, folder: Path, watcher: Watcher) -> dict[str, Any] | None:
    """Return the summary of a method that is done, or None if it is still to be computed.

    Damaged results are removed, and reported to the watcher.
    """
    summary = done(folder)
    if steps_of(summary) not in (0, method.shape.steps):  # its beginning, see `mhrun.store.longer`
        forget_shorter(folder)
        return None
    if summary is None and not (folder / TRACE).is_dir():
        return None
    if (reason := damage(folder)) is None and summary is not None:
        remove(folder / "blocks")  # after a kill between the two
        return summary
    watcher.note(f"{method.name}: {reason}; it is computed again.")
    clear(folder)
    return None


def _recorded_executor(method: Method, folder: Path, settings: Settings, watcher: Watcher) -> Executor:
    """Return the executor, and record it with what else decides rounding: a resumed method goes on with the same."""
    begun = recorded_choices(folder)
    if begun.executor is not None and settings.executor not in ("auto", begun.executor):
        watcher.note(f"{method.name} continues with the executor that it began with, {begun.executor}.")
    executor = choose_executor(method, settings.executor, begun.executor, settings.threads, watcher.note)
    with _announced(watcher, f"{method.name}: measuring how its module is evaluated fastest"):
        evaluation = choose_evaluation(method, begun.evaluation)
    threads = settings.threads or begun.torch_threads or measured_threads(method, executor)
    torch.set_num_threads(threads)  # until the method is done, see `run_method`
    record_choices(folder, Choices(executor.name, threads, evaluation))
    return executor


def steps_at_once(method: Method, executor: str, count: int, seconds: float) -> int:
    """Return the steps to run at once after `count` took these seconds: about `_CHUNK_SECONDS`, if memory allows."""
    faster = _CHUNK_SECONDS / max(seconds, 1e-6)
    # A compiled loop returns theta after each step, wanted or not.
    draw = 0 if method.shape.thin is None and executor != COMPILED else 8 * method.target.width
    fits = CHUNK_BYTES // (40 + draw) // method.shape.chains
    return max(1, min(int(count * min(faster, 8.0)), fits))


def check_bounds(method: Method, record: Record, first_step: int) -> None:
    """Raise if a term exceeded the model's bound in these steps: from there on the draws would be biased.

    Raises:
        UserError: with the first step and the number of violations.
    """
    count = np.asarray(record["violations"])  # (C, K)
    if not count.any():
        return
    step = first_step + int(count.any(axis=0).argmax())
    raise UserError(
        f"{method.name}: {int(count.sum()):,} terms exceeded their bounds, the first in step {step:,}: the bounds of "
        f"{type(method.target.model).__name__} do not hold, and draws would be biased. Raise its constants."
    )


@contextmanager
def _announced(watcher: Watcher, line: str) -> Iterator[None]:
    """Report what is done if the body takes longer than `_SILENT_SECONDS`."""
    timer = threading.Timer(_SILENT_SECONDS, watcher.note, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
