"""Calls the function of a parsed command. Heavy modules are imported only when a command needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mhrun.cli.commands import COMMANDS
from mhrun.cli.exit_status import OK
from mhrun.cli.parsing import CommandLine, parse_command_line
from mhrun.messages import say

_HELP = ("-h", "--help")


def dispatch(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status.

    Raises:
        UserError: a mistake in it.
    """
    without_help = [argument for argument in arguments if argument not in _HELP]
    if not without_help or len(without_help) < len(arguments):
        commands = [argument for argument in without_help if argument in COMMANDS and argument != "help"]
        if not commands and without_help and without_help[0] != "help" and without_help[0][0] != "-":
            parse_command_line(without_help)  # a word that is no command is no reason for the page of all
        return _help(commands[:1] or without_help[1:2] * (without_help[:1] == ["help"]))
    line = parse_command_line(arguments)
    if line.version:
        return _version()
    return HANDLERS[line.command](line)


def _help(topic: Sequence[str]) -> int:
    from mhrun.cli.help import page

    print(page("".join(topic[:1])), end="")
    return OK


def _version() -> int:
    from mhrun import __version__

    print(f"mhrun {__version__}")
    return OK


def _list(line: CommandLine) -> int:
    from mhrun.cli.listing.experiments import show_list

    return show_list(line.rest, line.folders)


def _report(line: CommandLine) -> int:
    from mhrun.cli.reporting import make_reports

    return make_reports(line.rest)


def _compare(line: CommandLine) -> int:
    from mhrun.cli.comparing import compare_runs

    return compare_runs(line.rest)


def _fetch(line: CommandLine) -> int:
    from mhrun.cli.fetching import fetch

    return fetch(line.rest)


def _init(line: CommandLine) -> int:
    from mhrun.cli.init.create import start_project

    return start_project(line.rest)


def _check(line: CommandLine) -> int:
    from mhrun.cli.check.command import check

    return check(line.rest, line.folders, as_json=line.as_json)


def _completion(line: CommandLine) -> int:
    from mhrun.cli.completion import completion

    return completion(line.rest)


def _run(line: CommandLine) -> int:
    from mhrun.cli.configuration.overrides import given_twice

    for text in given_twice(line.rest):
        say(text)
    if line.show:
        return _show_configuration(line)
    if line.dry:
        from mhrun.cli.dry_run import dry_run

        return dry_run(line.rest, line.folders, line.multirun)
    if line.multirun:
        from mhrun.cli.sweep.command import sweep

        return sweep(line.rest, line.folders)
    from mhrun.cli.running import run_once

    return run_once(line.rest, line.folders)


def _show_configuration(line: CommandLine) -> int:
    """Print the configuration of a run, or of the first job of a sweep."""
    import yaml

    from mhrun.cli.configuration.compose import compose_config
    from mhrun.cli.configuration.overrides import sweep_jobs, swept_only

    overrides = line.rest
    if line.multirun:
        jobs, swept = sweep_jobs(overrides)
        overrides = jobs[0]
        chosen = " ".join(swept_only(overrides, swept))
        say(f"the first of {len(jobs)} jobs: {chosen}")
    print(yaml.safe_dump(compose_config(overrides, line.folders, check=True), sort_keys=False), end="")
    return OK


HANDLERS: dict[str, Callable[[CommandLine], int]] = {
    "run": _run,  # a command line without a command
    "list": _list,
    "report": _report,
    "compare": _compare,
    "fetch": _fetch,
    "init": _init,
    "check": _check,
    "completion": _completion,
    "help": lambda line: _help(line.rest),
}
"""The function of each of `COMMANDS`."""
