"""Durations as text, and the time that is left of a run."""

from __future__ import annotations

import time


def describe_duration(seconds: float) -> str:
    """Return seconds as a short text: ``40 s``, ``3.5 min``, ``2 h``, ``4 days``."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return (
                f"{seconds / size:.2g} {unit}" if seconds < 99.5 * size else f"{seconds / size:,.0f} {unit}"
            )
    return f"{seconds:.0f} s"


class TimeLeft:
    """Estimates the time that is left from the steps after the first block, in which loops are compiled."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None  # the time and the step at the end of the first block

    def seconds_left(self, step: int, total: int) -> float | None:
        """Return the seconds that are left at a step, None at the end of the first block; for every block."""
        now = time.monotonic()
        if self._first is None:
            self._first = now, step
        began, first = self._first
        return (now - began) / (step - first) * (total - step) if step > first else None
