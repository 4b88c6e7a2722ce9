"""Runs the methods of one run concurrently, in worker processes.

A worker is a new Python process with the run's configuration. It is given names of methods and runs them as the run
itself would: same folders, same random numbers, same bits. Results reach the parent through the folder only; a pipe
carries names, progress and errors. What a worker leaves unfinished, because it was killed or its method failed, the
parent goes on with, alone, after the others.

Every worker holds a lock in the run's folder. A run whose parent was killed is not begun again before its last worker
has seen the closed pipe and ended.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NamedTuple

import torch

from mhrun.cores import CORES, usable_cores
from mhrun.engine.assemble import methods_of
from mhrun.engine.cost import step_seconds
from mhrun.engine.estimate import Cost, costs
from mhrun.engine.jobs import jobs_of, separable
from mhrun.engine.log import log
from mhrun.engine.method import Method, trace_attributes
from mhrun.engine.pilot import is_open, piloted
from mhrun.engine.run_method import run_method
from mhrun.engine.settings import Settings
from mhrun.engine.watcher import Watcher
from mhrun.errors import Interrupted, UserError, cut
from mhrun.store.blocks import done
from mhrun.store.folder import RunFolder
from mhrun.store.sharing import claimed, take

RUN, PILOT, COST = "run", "pilot", "cost"
"""What a worker does with a method; `COST` measures its remaining work."""
_COMMAND = "from mhrun.engine.workers import main; main()"
_POLL = 0.1  # seconds between two checks for a stop
_PATIENCE = 5.0  # seconds in which a process whose pipe is closed ends
_STOP = "stop"
_PROGRESS = ("begin", "advance", "end", "note")  # methods of a watcher


class WorkerSetup(NamedTuple):
    """What a worker needs to run methods of a run."""

    config: Mapping[str, Any]
    settings: Settings
    digests: Mapping[str, str]  # of the methods
    number: int  # of the worker
    cores: int  # that it uses at most


class Outcome(NamedTuple):
    """How a task ended."""

    refused: dict[str, str]  # the errors of users' mistakes, by method
    costs: dict[str, Cost]  # what `COST` found


class Workers:
    """Worker processes of a run, as many as `jobs_of` says; a context manager, which ends them.

    Args:
        config: the resolved configuration.
        folder: of the run, locked by this process.
        methods: all of the run's.
        settings: how each of them runs.
        digests: of the methods.
        watcher: receives the progress of all of them.
        stop: whether the user stopped the run.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: RunFolder,
        methods: Sequence[Method],
        settings: Settings,
        digests: Mapping[str, str],
        watcher: Watcher,
        stop: Callable[[], bool],
    ) -> None:
        self._folder, self._threads = folder, settings.threads
        self._watcher, self._stop = watcher, stop
        self.count = jobs_of(config["runtime"].get("jobs"), self._unfinished(methods), settings)
        self._workers: list[_Worker] = []
        if self.count > 1:
            share = replace(settings, block_bytes=settings.block_bytes // self.count)
            cores = max(1, usable_cores() // self.count)
            self._workers = [
                _Worker(WorkerSetup(config, share, digests, k, cores)) for k in range(self.count)
            ]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()

    def do(self, task: str, methods: Sequence[Method]) -> Outcome:
        """Have the workers do `task` with the methods that need it, and wait for them; without workers do nothing.

        A method that the outcome does not name may be unfinished, because its worker ended.

        Raises:
            Interrupted: the user stopped the run.
        """
        unfinished = self._unfinished(methods) if self.count > 1 else []
        waiting = deque(method.name for method in unfinished if task != PILOT or is_open(method))
        outcome, stopped, stopping = Outcome({}, {}), list[str](), False
        while True:
            if self._stop() and not stopping:
                if task != RUN:  # nothing of it is kept but what is complete
                    raise Interrupted("stopped before the first step")
                stopping = True
                waiting.clear()
                for worker in self._workers:
                    worker.send(_STOP)
            for worker in self._workers:
                if waiting and worker.ready and worker.busy_with is None:
                    worker.give_one(task, waiting)
            watched = [w for w in self._workers if w.busy_with or (waiting and not w.ready)]
            if not watched:
                break
            readable = wait([worker.connection for worker in watched], _POLL)
            for worker in [worker for worker in watched if worker.connection in readable]:
                message = worker.receive()
                if message is None:
                    self._lost(worker)
                elif message[0] in _PROGRESS:
                    getattr(self._watcher, message[0])(*message[1:])
                else:
                    name, worker.busy_with, worker.ready = worker.busy_with, None, True
                    self._ended(name, message, outcome, stopped)
        if stopping:
            raise Interrupted("; ".join(stopped) or "stopped between two methods")
        return outcome

    def _ended(self, name: Any, message: Sequence[Any], outcome: Outcome, stopped: list[str]) -> None:
        """Record a worker's final message on its task."""
        event, *contents = message
        if event == "refused":
            outcome.refused[name] = contents[0]
            self._watcher.note(f"{name} failed: {contents[0]}")
        elif event == "failed":
            trace = str(contents[0]).rstrip()
            log.error("%s failed in its process\n%s", name, trace)
            reason = cut(trace.splitlines()[-1])
            self._watcher.note(f"{name} failed in its process ({reason}); this process goes on with it.")
        elif event == "stopped":
            stopped.append(contents[0])
        elif event == "cost":
            outcome.costs.update({cost.method: cost for cost in contents[0]})

    def _unfinished(self, methods: Sequence[Method]) -> list[Method]:
        """Return the unfinished methods that workers may run, the longest first, so that none begins near the end."""
        unfinished = [m for m in methods if done(self._folder.method(m.name)) is None]
        return sorted(separable(unfinished, self._threads), key=lambda m: -step_seconds(m) * m.shape.total)

    def _lost(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        status = worker.end(_PATIENCE)
        subject = f"{worker.busy_with}: its process" if worker.busy_with else "a worker process"
        self._watcher.note(f"{subject} ended early ({status}); the run goes on without it.")


class _Worker:
    """The parent's end of a worker process."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.connection, far_end = Pipe()
        self.ready = False  # it holds its lock
        self.busy_with: Any = None  # the method's name
        self.known = set[str]()  # the methods that it was given
        places = [path for path in sys.path if path]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _COMMAND, str(far_end.fileno())],
                pass_fds=[far_end.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(places), CORES: str(setup.cores)},
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C reaches the parent alone, which stops the workers
            )
        finally:
            far_end.close()
        self.send(setup)

    def send(self, message: Any) -> bool:
        """Send a message; False if the process has ended."""
        try:
            self.connection.send(message)
        except OSError:
            return False
        return True

    def give(self, task: str, name: str) -> bool:
        """Give the process a method; False if it has ended."""
        if self.send((task, name)):
            self.busy_with = name
            self.known.add(name)
            return True
        return False

    def give_one(self, task: str, waiting: deque[str]) -> None:
        """Give the process one of the waiting methods, preferably one whose loop it has compiled."""
        name = next((name for name in waiting if name in self.known), waiting[0])
        if self.give(task, name):
            waiting.remove(name)

    def receive(self) -> tuple[Any, ...] | None:
        """Return the next message; None if the process has ended."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def end(self, patience: float = 0.0) -> str:
        """End the process, by a kill after `patience` seconds, and return how it ended."""
        self.connection.close()  # at which it ends
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


class _Sender:
    """A watcher that sends what it receives to the parent."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def send(self, *message: Any) -> None:
        """Send a message; thread-safe, as timers send too."""
        with self._lock:
            self._connection.send(message)

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Send that a method starts."""
        self.send("begin", method, step, total, executor)

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        """Send the progress."""
        self.send("advance", method, step, accept_rate, n_lik, n_grad)

    def end(self, method: str) -> None:
        """Send that the method is complete."""
        self.send("end", method)

    def note(self, message: str) -> None:
        """Send the message."""
        self.send("note", message)


def serve(connection: Connection) -> None:
    """Do what the parent sends, until it closes the pipe or ends."""
    setup: WorkerSetup = connection.recv()
    folder = RunFolder.of(setup.config)
    tasks, stop = queue.SimpleQueue[tuple[str, str]](), threading.Event()

    def listen() -> None:
        while True:
            try:
                message = connection.recv()
            except (EOFError, OSError):
                os._exit(0)  # as a kill, after which the run resumes from what is on disk
            if message == _STOP:
                stop.set()
            else:
                tasks.put(message)

    torch.set_num_threads(setup.settings.threads or 1)
    with folder.worker_lock(setup.number):
        sender = _Sender(connection)
        sender.send("ready")  # the parent gives no method to a process without the lock
        threading.Thread(target=listen, daemon=True).start()
        while True:
            task, name = tasks.get()
            sender.send(*_done(task, name, setup, folder, sender, stop.is_set))


def _done(
    task: str, name: str, setup: WorkerSetup, folder: RunFolder, watcher: _Sender, stop: Callable[[], bool]
) -> tuple[Any, ...]:
    """Do a task and return how it ended."""
    try:
        config = {**setup.config, "methods": {name: setup.config["methods"][name]}}
        (method,) = methods_of(config)
        if task == PILOT:
            piloted(method, folder.method(name), watcher.note)
            return ("done",)
        if task == COST:
            method = piloted(method, folder.method(name), watcher.note)
            return ("cost", costs([(method, folder.method(name))], setup.settings))
        with claimed(folder, setup.digests[name]) as is_claimed:
            if not is_claimed:
                return ("done",)  # by another run, for which the parent waits
            if not setup.config["runtime"]["force"] and take(folder, name, setup.digests[name]) is not None:
                return ("done",)
            method = piloted(method, folder.method(name), watcher.note)
            attributes = trace_attributes(setup.config, folder.digest, method, setup.digests[name])
            run_method(method, folder.method(name), setup.settings, watcher, stop, attributes)
    except UserError as error:
        return ("refused", str(error))
    except Interrupted as error:
        return ("stopped", str(error))
    except Exception:  # the parent notes it and goes on with the method, where the error may recur
        return ("failed", traceback.format_exc())
    return ("done",)


def main() -> None:
    """Serve the parent, from the file descriptor that the command line names."""
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended
        serve(Connection(int(sys.argv[1])))
