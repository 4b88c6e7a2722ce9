"""What goes wrong, in words for people."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """A mistake that the user can mend: what is wrong and what to do, in one line.

    The command line prints it without a traceback and exits with status 2.
    """


class Refusal(UserError):
    """Parts that do not go together, or a setting that has no meaning; raised before any data are read."""


class Interrupted(Exception):
    """Interrupted by the user. Everything computed is on disk, and `command` goes on from there."""

    command = "the same command"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the known word nearest to `word`, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else ""


def is_of_launcher(error: BaseException) -> bool:
    """Return whether a launcher of jobs raised an exception, from its handler of a signal.

    submitit does when SLURM preempts a job: it has queued the job again, and the process is to end. The exception
    appears wherever the program is, and nothing but the launcher may catch it.
    """
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "submitit" in Path(frames[-1].filename).parts
