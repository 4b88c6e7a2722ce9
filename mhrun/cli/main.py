"""The entry point of the command line: exit statuses, and errors as one line."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from mhrun.cli.crash import crash_of, printable, show_traceback
from mhrun.cli.dispatch import dispatch
from mhrun.cli.exit_status import BUG, FAILED, MISTAKE, STOPPED
from mhrun.cli.streams import discard_output, flush_output, is_full, prepare_streams
from mhrun.errors import Interrupted, UserError, cut, is_out_of_memory
from mhrun.messages import say


def main() -> None:
    """Run the command line and exit."""
    warnings.showwarning = _warned
    prepare_streams()
    if (encoding := sys.getfilesystemencoding()) != "utf-8" and not all(map(str.isascii, sys.argv[1:])):
        say(f"the locale reads names of files as {encoding}; if they are UTF-8, set PYTHONUTF8=1.")
    sys.exit(flush_output(run([_as_utf8(argument) for argument in sys.argv[1:]])))


_plain_warning, _shown = warnings.showwarning, set[str]()


def _warned(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning for users as one line, once; others as Python does."""
    if category is not UserWarning or file is not None:
        _plain_warning(message, category, filename, lineno, file, line)
    elif str(message) not in _shown:
        _shown.add(str(message))
        say(printable(" ".join(str(message).split())))


def _as_utf8(argument: str) -> str:
    """Return an argument of the command line as UTF-8, whatever the locale."""
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status.

    0: done. 1: failed. 2: the user's mistake, or an exception in the user's code. 70: a bug in mhrun. 130: stopped.
    """
    try:
        return dispatch(list(arguments))
    except UserError as error:
        show_traceback(error)
        say(printable(str(error)))
        return MISTAKE
    except Interrupted as stop:
        say(f"{stop}. What is computed is kept; {stop.command} resumes it.")
        return STOPPED
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            return _crashed(error)
        say(
            "there is not enough memory; try fewer chains or a larger thin. Results are kept: the same command resumes "
            "from there."
        )
        return FAILED
    except KeyboardInterrupt:
        say(
            "stopped. What a run has computed is kept, but for the last seconds; the same command resumes it."
        )
        return STOPPED
    except BrokenPipeError:  # the output was closed, as in `mhrun list | head`
        return discard_output()
    except OSError as error:
        return _failed(error)
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
            return discard_output()  # rich makes an exit of it
        return _crashed(error)


def _failed(error: OSError) -> int:
    """Print the one line of an error of the operating system, and return the exit status."""
    if error.errno == errno.ENAMETOOLONG:
        show_traceback(error)
        say(printable(f"{cut(repr(error.filename))}: {error.strerror}; choose a shorter name."))
        return MISTAKE
    if is_full(error):
        show_traceback(error)
        say(f"{error.strerror}: free some space for the output or temporary files, and run the same command.")
        return FAILED
    return _crashed(error)


def _crashed(error: BaseException) -> int:
    """Print the one line of an unexpected exception, and return the exit status."""
    show_traceback(error)
    crash = crash_of(error)
    say(printable(crash.line))
    return MISTAKE if crash.of_user else BUG


if __name__ == "__main__":
    main()
