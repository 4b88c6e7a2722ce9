"""How a run goes, on a terminal and off it."""

from __future__ import annotations

import sys
import time
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_EVERY = 5.0  # seconds between plain lines


def watcher(stream: IO[str] | None = None) -> Bars | Lines:
    """Return a moving bar if `stream` (standard error) is a terminal, else a writer of plain lines.

    Whoever asks for it closes it, whatever happens in between.
    """
    stream = stream or sys.stderr
    return Bars(stream) if stream.isatty() else Lines(stream)


class Bars:
    """A bar per method: steps, acceptance, data touched, time left."""

    def __init__(self, stream: IO[str]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
            TextColumn("{task.fields[facts]}", style="dim"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=stream),
            refresh_per_second=5,
        )
        self._task: TaskID | None = None

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Start a bar."""
        self._progress.start()
        self._task = self._progress.add_task(
            f"{method} [dim]{executor}[/dim]", total=total, completed=step, facts=""
        )

    def advance(self, step: int, accept_rate: float, n_lik: int, n_grad: int) -> None:
        """Move the bar."""
        assert self._task is not None
        self._progress.update(self._task, completed=step, facts=_facts(accept_rate, n_lik, n_grad))

    def end(self, method: str) -> None:
        """Leave the bar as it is; the next one comes below it."""
        self._progress.refresh()

    def note(self, message: str) -> None:
        """Write a line above the bars."""
        self._progress.console.print(message, style="yellow", markup=False)

    def close(self) -> None:
        """Leave the terminal as it was: a bar that still moves has its cursor hidden."""
        self._progress.stop()


class Lines:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._method, self._total, self._first = "", 0, 0
        self._began = self._last = 0.0
        self._latest = ""

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Say that a method begins, or from where it goes on."""
        self._method, self._total, self._first = method, total, step
        self._began = self._last = time.monotonic()
        where = f", going on from step {step:,}" if step else ""
        self._write(f"{method}: {total:,} steps ({executor}){where}")

    def advance(self, step: int, accept_rate: float, n_lik: int, n_grad: int) -> None:
        """Write a line now and then."""
        now = time.monotonic()
        self._latest = _facts(accept_rate, n_lik, n_grad)
        if now - self._last > _EVERY:
            self._last = now
            left = (now - self._began) / max(step - self._first, 1) * (self._total - step)
            share = f"{step / self._total:.0%}"
            self._write(
                f"{self._method}: step {step:,} of {self._total:,} ({share}), {self._latest}, {left:.0f} s left"
            )

    def end(self, method: str) -> None:
        """Say that the method is done."""
        self._write(f"{method}: done in {time.monotonic() - self._began:.1f} s, {self._latest}")

    def note(self, message: str) -> None:
        """Write the message."""
        self._write(message)

    def close(self) -> None:
        """Nothing is left open."""

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Notes:
    """Only what the user should know, a line each: of one of several jobs that run at once.

    Args:
        name: of the job, at the beginning of each line.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Say from where a method goes on."""
        if step:
            self.note(f"{method} goes on from step {step:,} of {total:,}")

    def advance(self, step: int, accept_rate: float, n_lik: int, n_grad: int) -> None:
        """Ignore it."""

    def end(self, method: str) -> None:
        """Ignore it."""

    def note(self, message: str) -> None:
        """Write the message."""
        print(f"{self._name} {message}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is left open."""


def _facts(accept_rate: float, n_lik: int, n_grad: int) -> str:
    parts: list[Any] = []
    if n_lik:
        parts += [f"acceptance {accept_rate:.2f}", f"{n_lik:.2g} likelihoods"]
    if n_grad:
        parts.append(f"{n_grad:.2g} gradients")
    return ", ".join(parts)
