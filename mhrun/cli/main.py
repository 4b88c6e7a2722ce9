"""The entry point of the command line. Heavy modules are imported when a command needs them."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from mhrun.cli.commands import COMMANDS
from mhrun.cli.crash import BUG, crash_of, out_of_memory, printable, show_traceback
from mhrun.cli.parsing import CommandLine, parse_command_line
from mhrun.errors import Interrupted, UserError

_HELP = ("-h", "--help")
OK, FAILED, MISTAKE, STOPPED = 0, 1, 2, 130


def main() -> None:
    """Run the command line and exit."""
    warnings.showwarning = _warned
    for stream in (sys.stdout, sys.stderr):  # do not fail if the locale lacks a character
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run([_as_utf8(word) for word in sys.argv[1:]]))


_plain_warning, _said = warnings.showwarning, set[str]()


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
    elif str(message) not in _said:
        _said.add(str(message))
        print(f"mhrun: {printable(' '.join(str(message).split()))}", file=sys.stderr)


def _as_utf8(word: str) -> str:
    """Return a word of the command line as UTF-8, whatever the locale."""
    try:
        return os.fsencode(word).decode()
    except UnicodeError:
        return word


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status.

    0: done. 1: failed. 2: the user's mistake, or an exception in the user's code. 70: a bug in mhrun. 130: stopped.
    """
    try:
        return _dispatch(list(arguments))
    except UserError as error:
        show_traceback(error)
        print(f"mhrun: {printable(str(error))}", file=sys.stderr)
        return MISTAKE
    except Interrupted as stop:
        print(f"mhrun: {stop}. What is computed is kept; {stop.command} resumes it.", file=sys.stderr)
        return STOPPED
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            return _crashed(error)
        print(
            "mhrun: there is not enough memory; try fewer chains or a larger thin. Results are kept: the same command "
            "resumes from there.",
            file=sys.stderr,
        )
        return FAILED
    except KeyboardInterrupt:
        print(
            "mhrun: stopped. What a run has computed is kept, but for the last seconds; the same command resumes it.",
            file=sys.stderr,
        )
        return STOPPED
    except BrokenPipeError:  # the output was closed, as in `mhrun list | head`
        return _output_closed()
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError):
            return _output_closed()  # rich makes an exit of it
        return _crashed(error)


def _output_closed() -> int:
    """Send what is still printed nowhere, and return the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OK


def _crashed(error: BaseException) -> int:
    """Print the one line of an unexpected exception, and return the exit status."""
    show_traceback(error)
    crash = crash_of(error)
    print(f"mhrun: {printable(crash.line)}", file=sys.stderr)
    return MISTAKE if crash.of_user else BUG


def _dispatch(arguments: list[str]) -> int:
    without_help = [word for word in arguments if word not in _HELP]
    if not without_help or without_help[0] == "help" or len(without_help) < len(arguments):
        from mhrun.cli.help import page

        topic = (
            without_help[1:2]
            if without_help[:1] == ["help"]
            else [word for word in without_help if word in COMMANDS][:1]
        )
        print(page("".join(topic)), end="")
        return OK
    if arguments[0] in ("--version", "-V"):
        from mhrun import __version__

        print(f"mhrun {__version__}")
        return OK
    if arguments[0] == "completion":
        from mhrun.cli.completion import completion

        return completion(arguments[1:])
    words = parse_command_line(arguments)
    if words.command == "list":
        from mhrun.cli.listing import show_list

        return show_list(words.rest, words.folders)
    if words.command == "report":
        from mhrun.cli.reporting import make_reports

        return make_reports(words.rest)
    if words.command == "compare":
        from mhrun.cli.comparing import compare_runs

        return compare_runs(words.rest)
    if words.command == "fetch":
        from mhrun.cli.fetching import fetch

        return fetch(words.rest)
    if words.command == "init":
        from mhrun.cli.starting import start_project

        return start_project(words.rest)
    if words.command == "check":
        from mhrun.cli.checking import check

        return check(words.rest, words.folders, as_json=words.as_json)
    if words.show:
        return _show_configuration(words)
    if words.dry:
        from mhrun.cli.planning import plan

        return plan(words.rest, words.folders, words.multirun)
    if words.multirun:
        from mhrun.cli.sweep import sweep

        return sweep(words.rest, words.folders)
    from mhrun.cli.running import run_once

    return run_once(words.rest, words.folders)


def _show_configuration(words: CommandLine) -> int:
    """Print the configuration of a run, or of the first job of a sweep."""
    import yaml

    from mhrun.cli.compose import compose_config
    from mhrun.cli.words import sweep_jobs

    overrides = words.rest
    if words.multirun:
        jobs, swept = sweep_jobs(overrides)
        overrides = jobs[0]
        own_words = " ".join(word for word in overrides if word.partition("=")[0] in swept)
        print(f"mhrun: the first of {len(jobs)} jobs: {own_words}", file=sys.stderr)
    print(yaml.safe_dump(compose_config(overrides, words.folders, check=True), sort_keys=False), end="")
    return OK


if __name__ == "__main__":
    main()
