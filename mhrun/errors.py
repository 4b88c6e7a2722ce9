"""Errors that are reported to the user in one line, and what such lines are made of."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class UserError(Exception):
    """A mistake that the user can fix: what is wrong and what to do, in one line.

    The command line prints it without a traceback and exits with status 2.
    """


class Refusal(UserError):
    """Parts that do not go together, or a setting that has no meaning; raised before any data are read."""


class Interrupted(Exception):
    """Interrupted by the user. Everything computed is on disk, and `command` resumes it."""

    command = "the same command"


class Halt(NamedTuple):
    """Where an exception stopped a run."""

    method: str
    step: int | None  # the last one that was done; None: it had not begun
    total: int
    folder: Path
    finished: list[str]  # methods


@contextmanager
def after_step(step: int) -> Iterator[None]:
    """Record on an exception which step was done before it, for `step_of`."""
    try:
        yield
    except BaseException as error:
        error.__dict__["_mhrun_step"] = step
        raise


def step_of(error: BaseException) -> int | None:
    """Return the step that `after_step` has recorded, None without one."""
    step = error.__dict__.get("_mhrun_step")
    return step if isinstance(step, int) else None


def record_halt(error: BaseException, halt: Halt) -> None:
    """Record on an exception where it stopped the run."""
    error.__dict__["_mhrun_halt"] = halt


def halt_of(error: BaseException) -> Halt | None:
    """Return what `record_halt` has recorded, None without it."""
    halt = error.__dict__.get("_mhrun_halt")
    return halt if isinstance(halt, Halt) else None


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, empty if it has none or cannot say it."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:
        return ""
    return lines[0][:300] if lines else ""


def cut(text: str, most: int = 80) -> str:
    """Return a text cut to at most `most` characters, ending in ... if it was longer."""
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."


def reason(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its class if it has none."""
    return first_line(error) or type(error).__name__


def reason_of(error: BaseException) -> str:
    """Return in one line what went wrong, with the exception's class unless it is a `UserError`."""
    name = "" if isinstance(error, UserError) else type(error).__name__
    return writable(": ".join(part for part in (name, first_line(error)) if part))


def writable(text: str) -> str:
    """Return a text with characters that UTF-8 cannot encode escaped: an exception may quote anything."""
    return text.encode(errors="backslashreplace").decode()


def place_in(file: str, line: int | None) -> str:
    """Return a place in the code, as in ``model.py, line 12``."""
    return writable(f"{Path(file).name}, line {line}")


def raised_in(error: BaseException) -> str:
    """Return the place in the code where an exception was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return place_in(frame.filename, frame.lineno)


def links(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, what it is wrapped around, and so on."""
    visited = set[int]()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def cause(error: BaseException) -> UserError | None:
    """Return the innermost `UserError` that an error of a library is wrapped around, or None.

    Libraries add lines to it.
    """
    user_errors = [link for link in links(error) if isinstance(link, UserError)]
    return user_errors[-1] if user_errors else None


def nearest(word: object, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the known word nearest to `word`, or an empty string, as for no word."""
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def check_choice(setting: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value that is not among the choices.

    Raises:
        Refusal: it is not; it names them, and the nearest one.
    """
    if value not in tuple(choices):  # which takes values without a hash
        named = (" or " if len(choices) == 2 else ", ").join(choices)
        raise Refusal(f"{setting} = {value!r} is unknown; choose {named}.{nearest(value, choices)}")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is due to insufficient memory: torch raises its own, on a CPU without a class."""
    of_torch = isinstance(error, RuntimeError) and "alloc" in str(error) and "memory" in str(error)
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or of_torch


def is_of_launcher(error: BaseException) -> bool:
    """Return whether a launcher of jobs raised an exception, from its handler of a signal.

    submitit does when SLURM preempts a job: it has queued the job again, and the process is to end. The exception
    appears wherever the program is, and nothing but the launcher may catch it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "submitit" in Path(frames[-1].filename).parts
