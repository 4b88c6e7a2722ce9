"""The command line's entry. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mhrun.errors import Interrupted, UserError, nearest

COMMANDS = ("list", "report", "fetch", "help")
OK, FAILED, MISTAKE, STOPPED = 0, 1, 2, 130


class Words(NamedTuple):
    """A command line, taken apart."""

    overrides: list[str]
    folders: list[Path]
    multirun: bool
    show: bool


def main() -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status: 0 done, 1 failed, 2 the user's mistake, 130 stopped."""
    try:
        return _dispatch(list(arguments))
    except UserError as error:
        print(f"mhrun: {error}", file=sys.stderr)
        return MISTAKE
    except Interrupted as stop:
        print(f"mhrun: {stop}. Nothing is lost: the same command goes on from there.", file=sys.stderr)
        return STOPPED
    except KeyboardInterrupt:
        print("mhrun: stopped.", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:  # the reader of our output has gone, as in `mhrun list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        from mhrun.cli.help import HELP

        print(HELP, end="")
        return OK
    if arguments[0] in ("--version", "-V"):
        from mhrun import __version__

        print(f"mhrun {__version__}")
        return OK
    command, rest = arguments[0], arguments[1:]
    if command == "list":
        from mhrun.cli.listing import show_list

        return show_list(rest)
    if command == "report":
        from mhrun.cli.reporting import make_reports

        return make_reports(rest)
    if command == "fetch":
        from mhrun.cli.fetching import fetch

        return fetch(rest)
    words = taken_apart(arguments)
    if words.show:
        import yaml

        from mhrun.cli.compose import compose_config

        print(yaml.safe_dump(compose_config(words.overrides, words.folders), sort_keys=False), end="")
        return OK
    if words.multirun:
        from mhrun.cli.sweep import sweep

        return sweep(words.overrides, words.folders)
    from mhrun.cli.running import run_once

    return run_once(words.overrides, words.folders)


def taken_apart(arguments: Sequence[str]) -> Words:
    """Return overrides and options of a run's command line.

    Raises:
        UserError: an option or a command that does not exist.
    """
    overrides: list[str] = []
    folders: list[Path] = []
    multirun = show = False
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-m", "--multirun"):
            multirun = True
        elif word in ("--config-dir", "-cd", "--cfg", "-c"):
            if not rest:
                raise UserError(f"{word} needs a value.")
            value = rest.pop(0)
            if word in ("--cfg", "-c"):
                if value != "job":
                    raise UserError(f"--cfg {value} is unknown; say --cfg job.")
                show = True
            else:
                folders.append(Path(value))
        elif word.startswith("--config-dir="):
            folders.append(Path(word.partition("=")[2]))
        elif word.startswith("-"):
            raise UserError(f"There is no option '{word}' (mhrun --help shows what there is).")
        elif "=" not in word and not word.startswith("~"):
            known = nearest(word, COMMANDS)
            raise UserError(
                f"'{word}' is no command and no KEY=VALUE.{known} mhrun --help shows what there is."
            )
        else:
            overrides.append(word)
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"--config-dir {folder}: there is no such folder.")
    return Words(overrides, folders, multirun, show)


if __name__ == "__main__":
    main()
