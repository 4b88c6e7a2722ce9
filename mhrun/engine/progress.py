"""Progress of a call from Python: a line every ten seconds."""

from __future__ import annotations

import sys
import time

from mhrun.engine.chains import Silent

_EVERY = 10.0  # seconds


class Progress(Silent):
    """Prints to stderr how far a long run is and how long it will take; a run of less than ten seconds says nothing."""

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Note where the run begins; it says so if that is not the first step."""
        self._first, self._total = step, total
        self._began = self._last = time.monotonic()
        if step:
            self._print(f"resumed at step {step:,} of {total:,}")

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        """Print a line, if the last one is ten seconds old."""
        now = time.monotonic()
        if now - self._last < _EVERY or step == self._total:
            return
        self._last = now
        seconds_left = (now - self._began) / max(step - self._first, 1) * (self._total - step)
        self._print(f"step {step:,} of {self._total:,} ({step / self._total:.0%}), {seconds_left:.0f} s left")

    def _print(self, line: str) -> None:
        print(f"mhrun: {line}", file=sys.stderr, flush=True)
