"""The standard output and error streams, which may be closed, full, or of a terminal that lacks characters."""

from __future__ import annotations

import errno
import io
import os
import sys

from mhrun.cli.exit_status import FAILED, OK
from mhrun.messages import say

_FULL = (errno.ENOSPC, errno.EDQUOT)


def prepare_streams() -> None:
    """Let printing not fail for a character that the locale lacks, nor where the shell closed a stream (``>&-``)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def flush_output(status: int) -> int:
    """Print what is buffered, and return the exit status of a command that ended with `status`.

    At the end of the process Python would print the exception, and exit with 120.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    except OSError as error:
        discard_output()
        say(f"the output cannot be written: {error.strerror}.")
        return status or FAILED
    return status


def discard_output() -> int:
    """Discard what is still to be printed, as it is closed (``mhrun list | head``), and return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK


def is_full(error: OSError) -> bool:
    """Return whether an error is that of a full disk."""
    return error.errno in _FULL
