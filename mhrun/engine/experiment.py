"""Runs all methods of a configuration in the run's folder."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from mhrun.data.table_facts import units_in_words
from mhrun.engine.assemble import check_data, check_space, large_draws, methods_of
from mhrun.engine.batch_sizes import batch_sizes
from mhrun.engine.estimate import estimate, estimate_pays
from mhrun.engine.executors import check_executor
from mhrun.engine.fit import fit_warnings, judges_fit
from mhrun.engine.log import LoggingWatcher, log, log_to
from mhrun.engine.machine import machine, versions
from mhrun.engine.method import Method, prior_attribute, trace_attributes
from mhrun.engine.noise_warnings import log_ratio_noise, log_ratio_skew
from mhrun.engine.pilot import improper, piloted
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.threads import limited
from mhrun.engine.warnings import acceptance_range, explained_acceptance, valid_share, warnings_of
from mhrun.engine.watcher import Watcher
from mhrun.engine.workers import COST, PILOT, RUN, Workers
from mhrun.errors import Halt, Interrupted, UserError, note_halt, reason_of, step_of
from mhrun.kernels import ReplicaExchange
from mhrun.kernels.stationary import samples
from mhrun.models.parameters import constant_coordinates
from mhrun.store.blocks import done
from mhrun.store.files import remove
from mhrun.store.folder import COMPLETE, RunFolder
from mhrun.store.identity import FORMAT, RESULTS_VERSION, method_digest
from mhrun.store.netcdf import COLLECTED, open_trace
from mhrun.store.sharing import claimed, take
from mhrun.target.function_space import is_network

_WAIT = 0.5  # seconds between two looks at whether another run has computed a method


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
    with limited(settings.threads or 1):  # but for methods whose steps pay for more
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
            with log_to(folder), _stop_signal() as stop:
                _run(config, folder, methods, settings, LoggingWatcher(watcher), stop, warn_last)
        folder.point_latest()


def _run(
    config: Mapping[str, Any],
    folder: RunFolder,
    methods: list[Method],
    settings: Settings,
    watcher: Watcher,
    stop: _StopSignal,
    warn_last: bool,
) -> None:
    summary = _first_summary(config, folder)
    folder.write_summary(summary)
    digests = {method.name: method_digest(config, method.name) for method in methods}
    if finished := [method.name for method in methods if done(folder.method(method.name)) is not None]:
        watcher.note(f"{', '.join(finished)}: finished by an earlier part of this run")
    if not config["runtime"]["force"]:
        for method in methods:
            if method.name not in finished:
                _take(folder, method.name, digests[method.name], watcher)
    pilots: dict[str, Any] = {}
    try:
        with Workers(config, folder, methods, settings, digests, watcher, stop) as workers:
            for line in workers.do(PILOT, methods).refused.values():
                raise UserError(line)
            with stop.at_once():  # a pilot that is stopped begins again
                for place, method in enumerate(methods):
                    methods[place], pilots[method.name] = piloted(
                        method, folder.method(method.name), watcher.note
                    )
            method_folders = [(method, folder.method(method.name)) for method in methods]
            if estimate_pays(method_folders, settings):
                costs = workers.do(COST, methods).costs
                with stop.at_once():
                    lines = list(estimate(method_folders, settings, workers.count, costs))
                for line in lines:
                    watcher.note(line)
                    log.info(line)
            refused = workers.do(RUN, methods).refused
        summary["jobs"] = workers.count
        refused_last = sorted(methods, key=lambda method: method.name in refused)
        for method in _each_claimed(config, folder, refused_last, digests, watcher, stop):
            if method.name in refused:
                raise UserError(refused[method.name])
            attributes = trace_attributes(config, folder.digest, method, digests[method.name])
            log.info("%s: %d chains, %d steps", method.name, method.shape.chains, method.shape.total)
            with _halting(method, folder, methods):
                method_summary = run_method(
                    method, folder.method(method.name), settings, watcher, stop, attributes
                )
            summary["methods"][method.name] = _of_method(
                method, config["methods"][method.name], method_summary, pilots[method.name]
            )
            if judges_fit(method.target.model):
                with open_trace(folder.method(method.name)) as trace:
                    summary["methods"][method.name]["fit_warnings"] = fit_warnings(method, trace)
            log.info("%s: done, %.1f s", method.name, method_summary["wall_s"])
            for warning in summary["methods"][method.name]["warnings"]:
                if warn_last or len(summary["methods"]) < len(methods):
                    watcher.note(warning)
                log.warning(warning)
            folder.write_summary(summary)
        summary["methods"] = {method.name: summary["methods"][method.name] for method in methods}
    except BaseException as error:
        if isinstance(error, Interrupted) and config["runtime"]["force"]:
            error.command = "the same command without runtime.force=true"
        summary["status"] = "stopped" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"
        log.error("%s: %s", type(error).__name__, error)
        if summary["status"] == "failed":
            summary["error"] = reason_of(error)
        folder.write_summary(summary)
        raise
    if methods:
        data = methods[0].target.data
        summary["data"] = {"description": data.description, "units": units_in_words(data.facts)}
    summary |= {"status": COMPLETE, "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    folder.write_summary(summary)


@contextmanager
def _halting(method: Method, folder: RunFolder, methods: Sequence[Method]) -> Iterator[None]:
    """Note on an exception which method it stopped, and which are finished."""
    try:
        yield
    except BaseException as error:
        finished = [other.name for other in methods if done(folder.method(other.name)) is not None]
        halt = Halt(method.name, step_of(error), method.shape.total, folder.path, finished)
        note_halt(error, halt)
        raise


def _first_summary(config: Mapping[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Return the summary of a run whose methods are still to come, with what an earlier part of it has recorded."""
    recorded = folder.summary() or {}
    summary: dict[str, Any] = {
        "experiment": config["experiment"],
        "scale": config["scale"],
        "seed": config["seed"],
        "digest": folder.digest,
        "status": "running",
        "format": FORMAT,
        "results_version": RESULTS_VERSION,
        "started": recorded.get("started") or time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "machine": machine(str(config["device"])),
        "methods": {},
        "metrics": {},
        "claims": [],
    }
    # Report code that changed between two parts of a run.
    sources = [*recorded.get("sources", []), summary["versions"]["source"]]
    summary["sources"] = list(dict.fromkeys(sources))
    if len(summary["sources"]) > 1:
        log.warning("this run was begun with another state of the code: %s", ", ".join(summary["sources"]))
    return summary


def _take(folder: RunFolder, name: str, digest: str, watcher: Watcher) -> None:
    """Use what another run has computed of a method, where one has."""
    if (source := take(folder, name, digest)) is not None:
        line = f"{name}: taken from run {source}, which has it with the same settings"
        watcher.note(line)
        log.info(line)


def _each_claimed(
    config: Mapping[str, Any],
    folder: RunFolder,
    methods: list[Method],
    digests: Mapping[str, str],
    watcher: Watcher,
    stop: Callable[[], bool],
) -> Iterator[Method]:
    """Yield the methods, those last that another process is computing; what it finds is used.

    Raises:
        Interrupted: the user stopped it while it waited.
    """
    waiting, announced = list(methods), False
    while waiting:
        still_waiting = list[Method]()
        for method in waiting:
            with claimed(folder, digests[method.name]) as is_ours:
                if not is_ours:
                    still_waiting.append(method)
                    continue
                if not config["runtime"]["force"]:
                    _take(folder, method.name, digests[method.name], watcher)
                yield method
        if len(still_waiting) == len(waiting):
            if not announced:
                names = ", ".join(method.name for method in still_waiting)
                watcher.note(f"Waiting for another run that computes {names}; Ctrl-C to stop waiting.")
            announced = True
            if stop():
                raise Interrupted(f"stopped while another run computes {still_waiting[0].name}")
            time.sleep(_WAIT)
        waiting = still_waiting


def _of_method(
    method: Method, node: Mapping[str, Any], summary: Mapping[str, Any], pilot: Mapping[str, Any] | None
) -> dict[str, Any]:
    shape = method.shape
    totals = {
        name: np.asarray(values, dtype=float) for name, values in summary["totals"].items()
    }  # null is NaN
    decisions = shape.chains * shape.steps
    accept_rate = float(totals["sum_accepted"].sum()) / decisions
    sizes = batch_sizes(summary, method.target.n, decisions)
    skew, skew_95 = log_ratio_skew(summary)
    return {
        "label": node.get("label", method.name),
        "samples": samples(method.kernel, method.plan)._asdict(),
        **prior_attribute(method.target.model),
        "accept_rate": accept_rate,
        "all_data_share": sizes.on_all / decisions,
        "n_accept_tests": decisions if method.kernel.decides else 0,
        "accept_range": acceptance_range(method),  # in which it is efficient
        "explained_acceptance": explained_acceptance(method, summary),
        "tuned_to": method.plan.tuned_to,
        "accept_rate_by_chain": (totals["sum_accepted"] / shape.steps).tolist(),
        "step_size_by_chain": summary["step_size"],  # at the last step
        "minibatch_size_mean": sizes.overall_mean,
        "minibatch_size_sd": sizes.overall_sd,
        "log_ratio_noise_sd": log_ratio_noise(summary),
        "log_ratio_skew": skew,
        "log_ratio_skew_95": skew_95,
        "likelihood_evals": int(totals["n_lik"].sum()) + (pilot or {}).get("n_lik", 0),
        "overhead_evals": int(totals["n_lik_overhead"].sum()),
        "gradient_evals": int(totals["n_grad"].sum()) + (pilot or {}).get("n_grad", 0),
        "separate_gradients": method.kernel.separate_gradients(),
        "network": is_network(method.target.model),
        "rungs": method.kernel.rungs,
        "exchange_every": method.kernel.every if isinstance(method.kernel, ReplicaExchange) else None,
        "constant": constant_coordinates(method.target.model),
        "after_burn_in": _after_burn_in(summary, totals),
        "reference_n_grad": summary.get("reference_n_grad", 0),  # of the mode and its derivatives
        "diverging": int(totals["sum_diverging"].sum()),
        "valid_share": valid_share(method, summary),
        "steps": shape.steps,
        "warmup": shape.warmup,
        "chains": shape.chains,
        "thin": _thin_in_words(method),
        "thin_stats": shape.stats_thin,
        "wall_s": summary["wall_s"],
        "executor": summary["executor"],
        "torch_threads": summary.get("torch_threads"),
        "arithmetic": method.arithmetic,
        "warnings": [*warnings_of(method, summary), *_pilot_warnings(method.name, pilot)],
    } | ({} if pilot is None else {"pilot": dict(pilot)})


def _after_burn_in(summary: Mapping[str, Any], totals: Mapping[str, Any]) -> dict[str, float]:
    """Return evaluations and seconds after burn-in."""
    counts = {name: float((totals[name] - totals[f"warmup_{name}"]).sum()) for name in ("n_lik", "n_grad")}
    return counts | {"wall_s": summary["wall_s"] - summary["warmup_wall_s"]}


def _pilot_warnings(name: str, pilot: Mapping[str, Any] | None) -> list[str]:
    if pilot is None:
        return []
    lines = []
    if not pilot.get("settled", True):
        lines.append(
            f"{name}: the pilot's step size did not settle: acceptance {pilot['acceptance_found']:.3g}, aimed at "
            f"{pilot['aim']:.2f}. Give a step size, or better starting points."
        )
    if "flat_along" in pilot:
        lines.append(f"{name}: {improper(pilot['flat_along'])}")
    return lines


def _thin_in_words(method: Method) -> int | list[int] | str | None:
    thin = method.shape.thin
    if not isinstance(thin, tuple):
        return thin
    return list(thin) if method.plan.collected is None else COLLECTED  # which may be many


class _StopSignal:
    """Says whether Ctrl-C or SIGTERM was received; a second one stops immediately."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._at_once = False

    def __call__(self) -> bool:
        """Return whether a signal was received."""
        return self._requested.is_set()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let the first signal stop what is done inside immediately, as none of it is kept."""
        if self():  # it came just before
            raise KeyboardInterrupt
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self() or self._at_once:
            raise KeyboardInterrupt
        self._requested.set()


@contextmanager
def _stop_signal() -> Iterator[_StopSignal]:
    """Yield what the signals of a run are received by."""
    stop = _StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not of Python
