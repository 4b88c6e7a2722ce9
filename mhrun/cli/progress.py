"""Progress of a run, on a terminal and in logs."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from mhrun.durations import TimeLeft
from mhrun.numbers import in_figures

_EVERY = 5.0  # seconds between lines in a log
_NAME, _BAR, _SHARE, _CLOCK = 20, 16, 5, 13  # widths of the columns of a bar
_FACTS = 12  # width below which acceptance and evaluations are left out
_WIDE_TERMINAL = 120  # width of a terminal with room for steps and executor
_SETTLED = 3.0  # seconds of steps, which begin slowly, from which the remaining time is shown
_SHORT_NAMES = ("acc.", "lik", "grad")


def watcher(stream: IO[str] | None = None) -> Bars | Lines:
    """Return a progress bar if `stream` (standard error) is a terminal, else a writer of lines.

    The caller must close it.
    """
    stream = stream or sys.stderr
    return Bars(stream) if stream.isatty() else Lines(stream)


class Bars:
    """A bar per method, of which several may run at a time: steps, acceptance, evaluations, and one clock.

    The clock shows the remaining time, and the elapsed time once the method is done. A terminal of 80 columns has a bar
    of `_BAR` characters with the share done; from `_WIDE_TERMINAL` columns on it also shows the steps and the executor.
    """

    def __init__(self, stream: IO[str], width: int | None = None) -> None:
        console = Console(file=stream, width=width)
        self._wide = console.width >= _WIDE_TERMINAL
        room = console.width - _NAME - _BAR - _SHARE - _CLOCK - 4  # 4: a space between two columns

        def limited(most: int) -> Column:
            return Column(max_width=most, no_wrap=True, overflow="ellipsis")

        steps = [TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps")] if self._wide else []
        column = Column(no_wrap=True) if self._wide else limited(room)
        facts = [TextColumn("{task.fields[facts]}", style="dim", table_column=column)]
        self._progress = Progress(
            TextColumn("{task.description}", table_column=limited(2 * _NAME if self._wide else _NAME)),
            BarColumn(bar_width=_BAR),
            TextColumn("{task.percentage:3.0f} %", table_column=Column(width=_SHARE, no_wrap=True)),
            *steps,
            *(facts if room >= _FACTS else []),
            _Clock(table_column=Column(justify="right", no_wrap=True)),
            console=console,
            refresh_per_second=5,
        )
        self._tasks: dict[str, TaskID] = {}  # of the methods

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Start a bar, and report the step from which a method resumes."""
        self._progress.start()
        if step:
            self.note(_resumed(method, step, total), style="cyan")
        name = f"{method} [dim]({executor})[/dim]" if self._wide else method
        if method in self._tasks:  # begun by a worker that has ended
            self._progress.remove_task(self._tasks[method])
        self._tasks[method] = self._progress.add_task(name, total=total, completed=step, facts="")

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        """Move the bar."""
        facts = _facts(accept_rate, n_lik, n_grad, short=not self._wide)
        self._progress.update(self._tasks[method], completed=step, facts=facts)

    def end(self, method: str) -> None:
        """Leave the finished bar; the next one appears below it."""
        self._progress.refresh()

    def note(self, message: str, style: str = "yellow") -> None:
        """Write a line above the bars."""
        self._progress.console.print(message, style=style, markup=False)

    def close(self) -> None:
        """Restore the terminal: an active bar hides the cursor."""
        self._progress.stop()


class _Clock(ProgressColumn):
    """The remaining or the elapsed time of this start; a resumed method has the rate of the steps since then."""

    def render(self, task: Task) -> Text:
        if task.finished:
            return Text(f"took {_clock(task.finished_time)}", style="green")
        is_settled = task.elapsed is not None and task.elapsed >= _SETTLED
        return Text(f"{_clock(task.time_remaining if is_settled else None)} left", style="cyan")


def _clock(seconds: float | None) -> str:
    """Return seconds as ``m:ss`` or ``h:mm:ss``; None as ``-:--``."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _resumed(method: str, step: int, total: int) -> str:
    return f"{method}: resumed at step {step:,} of {total:,}"


@dataclass
class _Begun:
    """A method in progress."""

    total: int  # steps
    time: float  # of this start
    facts: str = ""

    def __post_init__(self) -> None:
        self.last = self.time  # when a line was written
        self.pace = TimeLeft()


class Lines:
    """A line every few seconds, for logs and pipes."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._begun: dict[str, _Begun] = {}

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Report that a method starts, or the step from which it resumes."""
        self._begun[method] = _Begun(total, time.monotonic())
        start = _resumed(method, step, total) if step else f"{method}: {total:,} steps"
        self._write(f"{start} ({executor})")

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        """Write a line at intervals."""
        now, begun = time.monotonic(), self._begun[method]
        begun.facts = _facts(accept_rate, n_lik, n_grad)
        seconds_left = begun.pace.seconds_left(step, begun.total)
        if now - begun.last > _EVERY:
            begun.last = now
            share = f"{step / begun.total:.0%}"
            left = "" if seconds_left is None else f", {seconds_left:.0f} s left"
            self._write(f"{method}: step {step:,} of {begun.total:,} ({share}), {begun.facts}{left}")

    def end(self, method: str) -> None:
        """Report that the method is done."""
        begun = self._begun[method]
        self._write(f"{method}: done in {time.monotonic() - begun.time:.1f} s, {begun.facts}")

    def note(self, message: str) -> None:
        """Write the message."""
        self._write(message)

    def close(self) -> None:
        """Do nothing."""

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Notes:
    """Prints messages only, one line each, for one of several parallel jobs.

    Args:
        name: of the job, at the beginning of each line.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Report the step from which a method resumes."""
        if step:
            self.note(_resumed(method, step, total))

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        """Ignore it."""

    def end(self, method: str) -> None:
        """Ignore it."""

    def note(self, message: str) -> None:
        """Write the message."""
        print(f"{self._name} {message}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing."""


class Clocked:
    """Forwards progress, and counts the seconds in which the steps of at least one method run."""

    def __init__(self, watching: Bars | Lines | Notes) -> None:
        self._watching = watching
        self._running: set[str] = set()
        self._since, self._seconds = 0.0, 0.0

    @property
    def seconds(self) -> float:
        """The seconds until now."""
        return self._seconds + (time.monotonic() - self._since if self._running else 0.0)

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Count from here on."""
        self._become(self._running | {method})
        self._watching.begin(method, step, total, executor)

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        """Forward it."""
        self._watching.advance(method, step, accept_rate, n_lik, n_grad)

    def end(self, method: str) -> None:
        """Count until here, unless others run."""
        self._become(self._running - {method})
        self._watching.end(method)

    def note(self, message: str) -> None:
        """Forward it."""
        self._watching.note(message)

    def close(self) -> None:
        """Restore the terminal."""
        self._watching.close()

    def _become(self, running: set[str]) -> None:
        self._seconds, self._since = self.seconds, time.monotonic()
        self._running = running


def _facts(accept_rate: float | None, n_lik: int, n_grad: int, *, short: bool = False) -> str:
    acceptance, likelihoods, gradients = _SHORT_NAMES if short else ("acceptance", "likelihoods", "gradients")
    parts = [] if accept_rate is None else [f"{acceptance} {accept_rate:.2f}"]
    if n_lik:
        parts.append(f"{in_figures(n_lik, 2)} {likelihoods}")
    if n_grad:
        parts.append(f"{in_figures(n_grad, 2)} {gradients}")
    return ", ".join(parts)
