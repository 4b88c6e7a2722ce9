"""Parses a command line into its command, its options, and the remaining arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mhrun.build import TRUST
from mhrun.cli.commands import COMMANDS, COMMON, OPTIONS
from mhrun.errors import UserError, nearest
from mhrun.names import SCALES
from mhrun.paths import FOLDERS

_KEPT = {name: set(OPTIONS[name]) - set(COMMON) for name in ("compare", "init")}  # that commands read
_UNPARSED = ("completion", "help")  # commands whose arguments are none of these options
_VALUED = ("--project", "--config-dir", "-cd", "--trust", "--cfg", "-c")
# Options without a value -> attributes of the parser
_FLAGS = {
    ("run", "-m"): "multirun",
    ("run", "--multirun"): "multirun",
    ("run", "--dry-run"): "dry",
    ("run", "--version"): "version",
    ("run", "-V"): "version",
    ("check", "--json"): "as_json",
}


class CommandLine(NamedTuple):
    """A parsed command line."""

    command: str  # one of COMMANDS, or run
    rest: list[str]  # overrides, or the arguments of the command
    folders: list[Path]
    multirun: bool
    show: bool
    dry: bool = False
    as_json: bool = False
    version: bool = False


def parse_command_line(arguments: Sequence[str]) -> CommandLine:
    """Return a parsed command line, after applying --project, --config-dir and --trust.

    Raises:
        UserError: an option, a command or an experiment that does not exist.
    """
    waiting = list(arguments)
    parsed = _Parser(waiting.pop(0) if waiting[0] in COMMANDS else "run")
    while waiting:
        if parsed.command in _UNPARSED:
            parsed.rest += waiting
            break
        argument = waiting.pop(0)
        if not argument.startswith("-"):
            parsed.argument(argument)
            continue
        option, equals, value = argument.partition("=")
        if option in _VALUED:
            value = value if equals else next(iter(waiting), "")
            if not value:
                raise UserError(f"{option} needs a value.")
            del waiting[: 0 if equals else 1]
            parsed.setting(option, value)
        else:
            parsed.option(argument, waiting)
    return parsed.command_line()


class _Parser:
    """The arguments of a command line so far."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.rest: list[str] = []
        self.folders: list[Path] = []
        self.named: list[Path] = []  # folders of Python files and data files
        self.trust: list[str] = []
        self.bare: list[int] = []  # positions of arguments in `rest` that should be names of experiments
        self.multirun = self.show = self.dry = self.as_json = self.version = False

    def setting(self, option: str, value: str) -> None:
        """Apply an option that has a value.

        Raises:
            UserError: a folder that does not exist, or an unknown value.
        """
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

    def option(self, argument: str, following: Sequence[str]) -> None:
        """Apply an option of the command; a mistaken one may have its value in the arguments that follow.

        Raises:
            UserError: there is no such option, or it takes no value.
        """
        option, equals, value = argument.partition("=")
        flag = _FLAGS.get((self.command, option))
        if option in _KEPT.get(self.command, ()):
            self.rest.append(argument)
        elif flag is not None and equals:
            raise UserError(f"{option} takes no value; leave out '={value}', or the option.")
        elif flag is not None:
            setattr(self, flag, True)
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

    def argument(self, argument: str) -> None:
        """Keep an argument that is not an option."""
        if argument in COMMANDS and self.command == "run" and not self.rest:  # after options
            self.command = argument
            return
        if self.command == "run" and "=" not in argument and not argument.startswith("~"):
            self.bare.append(len(self.rest))
        self.rest.append(argument)

    def command_line(self) -> CommandLine:
        """Return the parsed line, once all folders are known, and put folders and trust into the environment.

        Raises:
            UserError: two experiments are named.
        """
        for at in self.bare:
            self.rest[at] = _experiment(self.rest[at], self.folders)
        twice = (
            [argument for argument in self.rest if argument.startswith("experiment=")] if self.bare else []
        )
        if len(twice) > 1:
            raise UserError(f"{' and '.join(twice)} are two experiments; run them one by one.")
        _export(FOLDERS, map(str, self.named), os.pathsep)
        _export(TRUST, self.trust, ",")
        flags = (self.multirun, self.show, self.dry, self.as_json, self.version)
        return CommandLine(self.command, self.rest, self.folders, *flags)


def _export(variable: str, values: Iterable[str], separator: str) -> None:
    """Add values to a list in the environment, where all jobs of a sweep see it."""
    present = list(filter(None, os.environ.get(variable, "").split(separator)))
    if additions := [value for value in values if value not in present]:
        os.environ[variable] = separator.join([*present, *additions])


def _nearest_option(argument: str, command: str) -> str:
    """Return the suggestion for a misspelt option of a command, compared without dashes."""
    options = {option.lstrip("-"): option for option in OPTIONS.get(command, COMMON) if len(option) > 2}
    if hint := nearest(argument.lstrip("-"), options):
        return hint.replace("'", "'--", 1)
    return " Settings of the table have no dashes, such as categorical=[city]." if command == "init" else ""


def _experiment(argument: str, folders: Sequence[Path]) -> str:
    """Return ``experiment=NAME`` for the name of an experiment.

    Raises:
        UserError: there is no such experiment.
    """
    from mhrun.cli.places import experiments

    paths = experiments(folders)
    if argument in paths:
        return f"experiment={argument}"
    if argument in COMMANDS:
        raise UserError(
            f"{argument!r} is a command, which comes first: mhrun [--project FOLDER] {argument} ..."
        )
    hint = nearest(argument, [*COMMANDS, *paths])
    if argument in SCALES:
        hint = f" Did you mean 'scale={argument}'?"
    raise UserError(
        f"{argument!r} is not a command, an experiment or KEY=VALUE.{hint} mhrun list shows the experiments, "
        "mhrun --help the commands; an experiment of a project needs --project FOLDER."
    )
