"""The entry point of the command line. Heavy modules are imported when a command needs them."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TextIO

from mhrun.build import TRUST
from mhrun.cli.commands import COMMANDS, COMMON, OPTIONS
from mhrun.cli.crash import BUG, crash_of, out_of_memory, printable, show_traceback
from mhrun.errors import Interrupted, UserError, nearest
from mhrun.paths import FOLDERS

_HELP = ("-h", "--help")
_KEPT = {name: set(OPTIONS[name]) - set(COMMON) for name in ("compare", "init")}  # that commands read
_VALUED = ("--project", "--config-dir", "-cd", "--trust", "--cfg", "-c")
OK, FAILED, MISTAKE, STOPPED = 0, 1, 2, 130


class Words(NamedTuple):
    """A parsed command line."""

    command: str  # one of COMMANDS, or run
    rest: list[str]  # overrides, or the arguments of the command
    folders: list[Path]
    multirun: bool
    show: bool
    dry: bool = False
    as_json: bool = False


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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (Exception, SystemExit) as error:
        return _crashed(error)


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
    words = taken_apart(arguments)
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


def _show_configuration(words: Words) -> int:
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


def taken_apart(arguments: Sequence[str]) -> Words:
    """Return a parsed command line, after applying --project, --config-dir and --trust.

    Raises:
        UserError: an option, a command or an experiment that does not exist.
    """
    waiting = list(arguments)
    parsed = _Parsed(waiting.pop(0) if waiting[0] in COMMANDS else "run")
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-"):
            parsed.word(word)
            continue
        option, _, value = word.partition("=")
        if option in _VALUED:
            if not value and not waiting:
                raise UserError(f"{option} needs a value.")
            parsed.setting(option, value or waiting.pop(0))
        else:
            parsed.option(option, value, waiting)
    return parsed.words()


class _Parsed:
    """The words of a command line so far."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.rest: list[str] = []
        self.folders: list[Path] = []
        self.named: list[Path] = []  # folders of Python files and data files
        self.trust: list[str] = []
        self.bare: list[int] = []  # positions of words in `rest` that should be names of experiments
        self.multirun = self.show = self.dry = self.as_json = False

    def setting(self, option: str, value: str) -> None:
        """Apply an option that has a value."""
        if option == "--trust":
            self.trust += value.split(",")
        elif option == "--project":
            from mhrun.store.projects import project

            user_project = project(value)
            self.folders.append(user_project.conf)
            self.named += [user_project.folder] if user_project.folder else []
            self.trust += user_project.modules
        elif option in ("--config-dir", "-cd"):
            if not Path(value).is_dir():
                raise UserError(f"--config-dir {value}: there is no such folder.")
            self.folders.append(Path(value))
            self.named.append(Path(value).resolve())
        elif value != "job":
            raise UserError(f"--cfg {value} is unknown; use --cfg job.")
        else:
            self.show = True

    def option(self, option: str, value: str, following: Sequence[str]) -> None:
        """Apply an option of the command; a mistaken one may have its value in the words that follow."""
        if option in _KEPT.get(self.command, ()):
            self.rest.append(f"{option}={value}" if value else option)
        elif self.command == "run" and option in ("-m", "--multirun"):
            self.multirun = True
        elif self.command == "run" and option == "--dry-run":
            self.dry = True
        elif self.command == "check" and option == "--json":
            self.as_json = True
        else:
            hint = self._as_setting(option, value or next(iter(following), "")) or _nearest_option(
                option, self.command
            )
            page = "mhrun --help" if self.command == "run" else f"mhrun {self.command} --help"
            raise UserError(f"There is no option '{option}'.{hint} {page} lists the options.")

    def _as_setting(self, option: str, value: str) -> str:
        """Return how to write a setting that was written as an option of a run, empty if it is none."""
        from mhrun.cli.completion import is_setting

        key = option.lstrip("-")
        with suppress(UserError, OSError):  # a file that the command itself would report
            if self.command == "run" and is_setting(key, self.rest, self.folders):
                shown = value if value and not value.startswith("-") else "VALUE"
                return f" Settings have no dashes: write {key}={shown}."
        return ""

    def word(self, word: str) -> None:
        """Keep a word that is not an option."""
        if word in COMMANDS and self.command == "run" and not self.rest:  # after options
            self.command = word
            return
        if self.command == "run" and "=" not in word and not word.startswith("~"):
            self.bare.append(len(self.rest))
        self.rest.append(word)

    def words(self) -> Words:
        """Return the parsed line, once all folders are known, and put folders and trust into the environment."""
        for at in self.bare:
            self.rest[at] = _experiment(self.rest[at], self.folders)
        twice = [word for word in self.rest if word.startswith("experiment=")] if self.bare else []
        if len(twice) > 1:
            raise UserError(f"{' and '.join(twice)} are two experiments; run them one by one.")
        _export(FOLDERS, map(str, self.named), os.pathsep)
        _export(TRUST, self.trust, ",")
        return Words(self.command, self.rest, self.folders, self.multirun, self.show, self.dry, self.as_json)


def _export(variable: str, values: Iterable[str], separator: str) -> None:
    """Add values to a list in the environment, where all jobs of a sweep see it."""
    present = list(filter(None, os.environ.get(variable, "").split(separator)))
    if additions := [value for value in values if value not in present]:
        os.environ[variable] = separator.join([*present, *additions])


def _nearest_option(word: str, command: str) -> str:
    """Return the suggestion for a misspelt option of a command, compared without dashes."""
    options = {option.lstrip("-"): option for option in OPTIONS.get(command, COMMON) if len(option) > 2}
    if hint := nearest(word.lstrip("-"), options):
        return hint.replace("'", "'--", 1)
    return " Settings of the table have no dashes, such as categorical=[city]." if command == "init" else ""


def _experiment(word: str, folders: Sequence[Path]) -> str:
    """Return ``experiment=NAME`` for the name of an experiment.

    Raises:
        UserError: it is none.
    """
    from mhrun.cli.places import experiments

    paths = experiments(folders)
    if word in paths:
        return f"experiment={word}"
    if word in COMMANDS:
        raise UserError(f"'{word}' is a command, which comes first: mhrun [--project FOLDER] {word} ...")
    hint = nearest(word, [*COMMANDS, *paths])
    if word in ("smoke", "quick", "long", "paper"):
        hint = f" Did you mean 'scale={word}'?"
    raise UserError(
        f"'{word}' is not a command, an experiment or KEY=VALUE.{hint} mhrun list shows the experiments, "
        "mhrun --help the commands; an experiment of a project needs --project FOLDER."
    )


if __name__ == "__main__":
    main()
