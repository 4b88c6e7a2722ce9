"""Signals that stop a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopSignal:
    """True once Ctrl-C or SIGTERM was received; a second one stops immediately."""

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
def stop_signal() -> Iterator[StopSignal]:
    """Handle the signals that stop a run, and yield the handler."""
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not of Python
