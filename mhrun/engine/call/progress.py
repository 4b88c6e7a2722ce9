"""Progress of a call from Python: a line every ten seconds."""

from __future__ import annotations

import time

from mhrun.durations import TimeLeft, describe_duration
from mhrun.engine.watcher import Silent
from mhrun.messages import say

_EVERY = 10.0  # seconds
_UNSAVED_SECONDS = 300.0  # left, above which a run that keeps nothing warns


class Progress(Silent):
    """Prints to stderr how far a long run is and how long it will take; nothing in a run of less than ten seconds.

    Args:
        is_kept: whether an interrupted run can be resumed; if not, a run of minutes prints a line on how to keep it.
    """

    def __init__(self, is_kept: bool = True) -> None:
        self._is_kept = is_kept

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Note where the run begins, and print that if it is not the first step."""
        self._total, self._pace = total, TimeLeft()
        self._last = time.monotonic()
        if step:
            self._print(f"resumed at step {step:,} of {total:,}")

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        """Print a line, if the last one is ten seconds old."""
        now, seconds_left = time.monotonic(), self._pace.seconds_left(step, self._total)
        if now - self._last < _EVERY or step == self._total:
            return
        self._last = now
        left = "" if seconds_left is None else f", {describe_duration(seconds_left)} left"
        self._print(f"step {step:,} of {self._total:,} ({step / self._total:.0%}){left}")
        if seconds_left is not None and seconds_left > _UNSAVED_SECONDS and not self._is_kept:
            self._print(
                "to shorten the run, press Ctrl-C and use fewer steps= or another kernel; with folder= a run that "
                "ends early is kept"
            )
            self._is_kept = True  # once

    def note(self, message: str) -> None:
        """Print it."""
        self._print(message)

    def _print(self, line: str) -> None:
        say(line)
