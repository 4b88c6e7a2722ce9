"""Runs all methods of a configuration in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mhrun.data.table_facts import describe_units, left_out
from mhrun.engine.assemble import check_data, methods_of
from mhrun.engine.diagnosis.diagnose import Diagnosis
from mhrun.engine.disk_space import check_space, large_draws
from mhrun.engine.estimate import estimate, estimate_pays
from mhrun.engine.execution.executors import check_executor
from mhrun.engine.execution.threads import limited
from mhrun.engine.log import LoggingWatcher, log, log_to
from mhrun.engine.method import Method, trace_attributes
from mhrun.engine.pilot import piloted
from mhrun.engine.run_context import RunContext
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.shared_methods import each_claimed, reuse
from mhrun.engine.stop import stop_signal
from mhrun.engine.summary import first_summary, summary_of_method
from mhrun.engine.watcher import Watcher
from mhrun.engine.workers import COST, PILOT, RUN, Workers
from mhrun.errors import Halt, Interrupted, UserError, reason_of, record_halt, step_of
from mhrun.store.blocks import done
from mhrun.store.files import remove
from mhrun.store.folder import COMPLETE, RunFolder
from mhrun.store.identity import method_digest


def run_experiment(config: Mapping[str, Any], watcher: Watcher, *, warn_last: bool = True) -> RunFolder:
    """Run a resolved configuration, or the missing part of it, and return its folder.

    Args:
        config: resolved.
        watcher: receives the progress, and the warnings of each method when it is done.
        warn_last: whether also those of the method that is done last; False where the caller prints all at the end.

    Raises:
        UserError: invalid settings, or a disk that is full or cannot be written.
        Interrupted: the user stopped the run; the same call resumes it.
    """
    folder = RunFolder.of(config)
    runtime = config["runtime"]
    settings = Settings(config["executor"], runtime["threads"], runtime["block_seconds"])
    if folder.is_complete() and not runtime["force"] and not folder.damage():
        if not folder.has(config):  # a complete run may be in a read-only place
            with folder.held(watcher.note):
                folder.create(config)
        folder.point_latest()
        return folder
    with limited(settings.threads or 1):  # except for methods whose steps are faster with more
        _compute(config, folder, settings, watcher, warn_last)
    return folder


def _compute(
    config: Mapping[str, Any], folder: RunFolder, settings: Settings, watcher: Watcher, warn_last: bool
) -> None:
    runtime = config["runtime"]
    methods = methods_of(config)
    check_space(methods, folder.path, force=bool(runtime["force"]))
    if not runtime["force"]:
        folder.check()
    check_data(methods)
    check_executor(methods, settings.executor, settings.threads)
    folder.make()
    with folder.held(watcher.note):
        if runtime["force"]:
            remove(folder.path / "methods")
            remove(folder.path / "summary.json")
        else:
            folder.check()  # again, because another process may have changed it meanwhile
        folder.create(config)
        damaged = folder.damage()
        for name, reason in damaged.items():
            watcher.note(f"{name}: {reason}; it is computed again.")
        if damaged or not folder.is_complete():  # the other process may have finished it meanwhile
            for line in large_draws([m for m in methods if done(folder.method(m.name)) is None]):
                watcher.note(line)
            with log_to(folder), stop_signal() as stop:
                summary = first_summary(config, folder)
                folder.write_summary(summary)
                digests = {method.name: method_digest(config, method.name) for method in methods}
                run = RunContext(config, folder, settings, digests, LoggingWatcher(watcher), stop)
                _run(run, methods, summary, warn_last)
        folder.point_latest()


def _run(run: RunContext, methods: Sequence[Method], summary: dict[str, Any], warn_last: bool) -> None:
    """Run the methods, and keep the summary in the run's folder up to date."""
    reuse(run, methods)
    for line in dict.fromkeys(filter(None, (left_out(method.target.data.facts) for method in methods))):
        run.watcher.note(f"data: {line}.")
        log.info("data: %s", line)
    of_methods: dict[str, Any] = summary["methods"]
    with _recording_failure(run, summary):
        with Workers(
            run.config, run.folder, methods, run.settings, run.digests, run.watcher, run.stop
        ) as workers:
            methods = _piloted(run, methods, workers)
            _note_estimate(run, methods, workers)
            refused = workers.do(RUN, methods).refused
        summary["jobs"] = workers.count
        refused_last = sorted(methods, key=lambda method: method.name in refused)
        for method in each_claimed(run, refused_last):
            if method.name in refused:
                raise UserError(refused[method.name])
            found = _run_one(run, method, methods)
            node = run.config["methods"][method.name]
            of_methods[method.name] = summary_of_method(method, node, found)
            warn = warn_last or len(of_methods) < len(methods)
            _finish(run, method, of_methods[method.name], warn=warn)
            run.folder.write_summary(summary)
        summary["methods"] = {method.name: of_methods[method.name] for method in methods}
    if methods:
        data = methods[0].target.data
        summary["data"] = {"description": data.description, "units": describe_units(data.facts)}
    summary |= {"status": COMPLETE, "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    run.folder.write_summary(summary)


def _piloted(run: RunContext, methods: Sequence[Method], workers: Workers) -> list[Method]:
    """Return the methods with what their pilots found.

    Raises:
        UserError: a pilot refused its method.
    """
    for line in workers.do(PILOT, methods).refused.values():
        raise UserError(line)
    with run.stop.at_once():  # a pilot that is stopped begins again
        return [piloted(method, run.folder.method(method.name), run.watcher.note) for method in methods]


def _note_estimate(run: RunContext, methods: Sequence[Method], workers: Workers) -> None:
    """Note how long the methods will take, where that is worth the measurement."""
    method_folders = [(method, run.folder.method(method.name)) for method in methods]
    if not estimate_pays(method_folders, run.settings):
        return
    costs = workers.do(COST, methods).costs
    with run.stop.at_once():
        lines = list(estimate(method_folders, run.settings, workers.count, costs))
    for line in lines:
        run.watcher.note(line)
        log.info(line)


def _run_one(run: RunContext, method: Method, methods: Sequence[Method]) -> Mapping[str, Any]:
    """Run a method, resuming it if it was interrupted, and return its summary."""
    attributes = trace_attributes(run.config, run.folder.digest, method, run.digests[method.name])
    log.info("%s: %d chains, %d steps", method.name, method.shape.chains, method.shape.total)
    with _halting(method, run.folder, methods):
        return run_method(
            method, run.folder.method(method.name), run.settings, run.watcher, run.stop, attributes
        )


def _finish(run: RunContext, method: Method, summary: dict[str, Any], *, warn: bool) -> None:
    """Add to the summary of a method how its model fits, and report its warnings."""
    warnings = Diagnosis(method, run.watcher.note).of_fit(run.folder.method(method.name))
    if warnings is not None:
        summary["fit_warnings"] = warnings
    log.info("%s: done, %.1f s", method.name, summary["wall_s"])
    for warning in summary["warnings"]:
        if warn:
            run.watcher.note(warning)
        log.warning(warning)


@contextmanager
def _recording_failure(run: RunContext, summary: dict[str, Any]) -> Iterator[None]:
    """Write into the summary that an exception stopped the run, or that it failed and why."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Interrupted) and run.config["runtime"]["force"]:
            error.command = "the same command without runtime.force=true"
        summary["status"] = "stopped" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"
        if summary["status"] == "failed":
            log.error("%s: %s", type(error).__name__, error)
            summary["error"] = reason_of(error)
        else:
            log.warning("stopped: %s", str(error) or "interrupted")
        run.folder.write_summary(summary)
        raise


@contextmanager
def _halting(method: Method, folder: RunFolder, methods: Sequence[Method]) -> Iterator[None]:
    """Note on an exception which method it stopped, and which are finished."""
    try:
        yield
    except BaseException as error:
        finished = [other.name for other in methods if done(folder.method(other.name)) is not None]
        halt = Halt(method.name, step_of(error), method.shape.total, folder.path, finished)
        record_halt(error, halt)
        raise
