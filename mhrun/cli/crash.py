"""Reports an unexpected exception in one line, with the details in a file."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from mhrun.errors import Halt, halt_of, place_in, reason_of
from mhrun.ownership import frames_of, is_own_file, user_frame
from mhrun.paths import lasting_cache_dir

DEBUG = "MHRUN_DEBUG"
"""The environment variable that shows tracebacks."""
_KEPT = 20  # number of detail files kept
_NOT_WRITTEN = f"The details could not be written; {DEBUG}=1 shows them."


class Crash(NamedTuple):
    """An unexpected exception in one line."""

    line: str
    of_user: bool  # raised in the user's own code, not in mhrun


def crash_of(error: BaseException) -> Crash:
    """Return the message for an unexpected exception, after writing its traceback to a file.

    It counts as the user's if the innermost frame outside of libraries is not in mhrun.
    """
    innermost = next(reversed(frames_of(error)), None)
    of_user = innermost is not None and not is_own_file(innermost.filename)
    frame = user_frame(error) if of_user else innermost
    place = "" if frame is None else f" ({place_in(frame.filename, frame.lineno)})"
    message = f"it calls sys.exit({error.code!r})" if isinstance(error, SystemExit) else reason_of(error)
    halt = halt_of(error) if of_user else None
    if halt is not None:
        return Crash(f"{_begins(halt)}: {message}{place}. {_kept(halt)} {_written(error)}", of_user)
    begins = "your code cannot be run" if of_user else "this is a bug in mhrun"
    return Crash(f"{begins}: {message}{place}. {_written(error)}", of_user)


def _begins(halt: Halt) -> str:
    step = f"after step {halt.step:,} of {halt.total:,}" if halt.step is not None else "before its first step"
    return f"{halt.method} stopped {step}"


def _kept(halt: Halt) -> str:
    """Return what there is of the run; a method that uses a file is computed again when the file has changed."""
    again = "Mend your code and run the same command again"
    if not halt.finished:
        return f"{again}: with other code it begins at the first step (this run is {halt.folder})."
    return (
        f"Finished methods are kept ({', '.join(halt.finished)}, in {halt.folder}). {again}: of these, it computes "
        "again only those that use what you have changed."
    )


def printable(text: str) -> str:
    """Return a text with control characters escaped, because it may quote user input or a file.

    Indented lines stay lines: a message lists what is missing in them.
    """
    return "".join(
        c if c.isprintable() or (c == "\n" and text[k + 1 : k + 3] == "  ") else repr(c)[1:-1]
        for k, c in enumerate(text)
    )


def debug() -> bool:
    """Return whether tracebacks are to be shown."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def show_traceback(error: BaseException) -> None:
    """Print the traceback in debug mode."""
    if debug():
        print(_details(error), end="", file=sys.stderr)


def _details(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # a failing __str__
        return "".join(traceback.format_tb(error.__traceback__)) + f"{type(error).__name__}\n"


def _written(error: BaseException) -> str:
    """Write the traceback to a file in the cache folder, and return a sentence with its path."""
    try:
        cache = lasting_cache_dir()
        if cache is None:
            return _NOT_WRITTEN
        place = cache / "crashes"
        place.mkdir(parents=True, exist_ok=True)
        path = _unused(place, f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        path.write_text(
            f"{' '.join(sys.argv)}\n\n{_details(error)}", encoding="utf-8", errors="backslashreplace"
        )
        for old in sorted(place.glob("*.txt"))[:-_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:  # a read-only disk
        return _NOT_WRITTEN
    return f"The details are in {path}."


def _unused(place: Path, stem: str) -> Path:
    """Return an unused file name: one command can crash several times in a second."""
    names = (f"{stem}{'' if k == 0 else f'-{k}'}.txt" for k in range(_KEPT))
    return place / next((name for name in names if not (place / name).exists()), f"{stem}.txt")
