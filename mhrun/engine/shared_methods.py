"""Methods that an earlier part of a run, or another run, has computed or is computing; see `mhrun.store.sharing`.

A method with more steps begins with those of another run (`mhrun.store.longer`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from mhrun.engine.log import log
from mhrun.engine.longer import is_slower, reason_to_begin_anew
from mhrun.engine.method import Method
from mhrun.engine.run_context import RunContext
from mhrun.errors import Interrupted
from mhrun.store.blocks import done
from mhrun.store.identity import method_digest
from mhrun.store.longer import begin_longer, shorter_runs
from mhrun.store.sharing import claimed, has_begun, take

_WAIT = 0.5  # seconds between two looks at whether another run has computed a method


def reuse(run: RunContext, methods: Sequence[Method]) -> None:
    """Note what an earlier part of the run has finished, and use what other runs have computed of the rest."""
    finished = [method.name for method in methods if done(run.folder.method(method.name)) is not None]
    if finished:
        run.watcher.note(f"{', '.join(finished)}: finished by an earlier part of this run")
    if not run.config["runtime"]["force"]:
        for method in methods:
            if method.name not in finished and not _take(run, method.name):
                _go_on(run, method)


def each_claimed(run: RunContext, methods: Sequence[Method]) -> Iterator[Method]:
    """Yield the methods; those that another process is computing come last, and its results are used.

    Raises:
        Interrupted: the user stopped it while it waited.
    """
    waiting, announced = list(methods), False
    while waiting:
        still_waiting = list[Method]()
        for method in waiting:
            with claimed(run.folder, run.digests[method.name]) as is_claimed:
                if not is_claimed:
                    still_waiting.append(method)
                    continue
                if not run.config["runtime"]["force"]:
                    _take(run, method.name)
                yield method
        if len(still_waiting) == len(waiting):
            if not announced:
                names = ", ".join(method.name for method in still_waiting)
                run.watcher.note(f"Waiting for another run that computes {names}; Ctrl-C to stop waiting.")
            announced = True
            if run.stop():
                raise Interrupted(f"stopped while another run computes {still_waiting[0].name}")
            time.sleep(_WAIT)
        waiting = still_waiting


def _take(run: RunContext, name: str) -> bool:
    """Use what another run has computed of a method, and return whether one has."""
    if (source := take(run.folder, name, run.digests[name])) is not None:
        _note(run, f"{name}: taken from run {source}, which has it with the same settings")
    return source is not None


def _go_on(run: RunContext, method: Method) -> None:
    """Begin a method with the steps of a finished run that has fewer of them, where there is one."""
    target = run.folder.method(method.name)
    if has_begun(target):
        return
    digest = method_digest(run.config, method.name, any_steps=True)
    for shorter in shorter_runs(run.folder, method.name, digest, method.shape.steps):
        if reason_to_begin_anew(method, shorter.steps) is None and not is_slower(
            method, shorter.folder, run.settings.executor
        ):
            total = method.shape.warmup + shorter.steps
            if begin_longer(target, shorter.folder, total):
                source = shorter.folder.parent.parent.name
                _note(run, f"{method.name}: goes on after step {total:,}, where run {source} ended")
                return


def _note(run: RunContext, line: str) -> None:
    run.watcher.note(line)
    log.info(line)
