"""Errors of Hydra and OmegaConf in one line, with the setting or the part that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from omegaconf.errors import GrammarParseError

from mhrun.cli.configuration.unknown_keys import Command, key_hint, members_hint, why_no_part
from mhrun.cli.places import experiments
from mhrun.errors import UserError, cause, links, nearest, reason
from mhrun.paths import CONF
from mhrun.store.identity import CONSTANTS

_INSTALLED = {"joblib": "hydra-joblib-launcher", "submitit": "hydra-submitit-launcher", "ray": "ray"}


class _Failure(NamedTuple):
    """A composition that failed."""

    error: Exception
    text: str  # its message in one line
    command: Command


def explained(
    error: Exception, overrides: Sequence[str], folders: Sequence[Path], name: str = "config"
) -> UserError:
    """Return in one line why Hydra cannot compose these overrides with the configuration `name`."""
    if (user_error := cause(error)) is not None:
        return user_error
    failure = _Failure(error, " ".join(str(error).split()), Command(overrides, folders, name))
    lines = (explain(failure) for explain in _EXPLANATIONS)
    return UserError(next(filter(None, lines), None) or reason(error))


def _of_a_reference(failure: _Failure) -> str | None:
    """Return which ``${...}`` cannot be read, or None."""
    grammar = (link for link in links(failure.error) if isinstance(link, GrammarParseError))
    key = next((link.full_key for link in grammar if link.full_key), None)
    if key is None:
        return None
    return (
        f"{key}: its ${{...}} cannot be read; a reference is ${{NAME}} or ${{GROUP.NAME}}, and a plain ${{ is "
        "written \\${."
    )


def _of_an_experiment(failure: _Failure) -> str | None:
    """Return that there is no such experiment, or None."""
    found = re.search(r"[Cc]ould not (?:find|load) '?experiment/([^'.\s]+)", failure.text) or re.search(
        r"In 'config': Could not find 'experiment/([^']+)'", failure.text
    )
    if found is None:
        return None
    folders = failure.command.folders
    return (
        f"There is no experiment '{found[1]}'.{nearest(found[1], experiments(folders))} mhrun list shows the "
        f"experiments{'' if folders else '; one of a project needs --project FOLDER'}."
    )


def _of_something_added_twice(failure: _Failure) -> str | None:
    """Return which method or group exists already, or None."""
    found = re.search(r"(?:Multiple values for \S*|^\S*)@methods\.(\w+)\.", failure.text)
    if found and (
        override := next((w for w in failure.command.overrides if f"@methods.{found[1]}=" in w), None)
    ):
        method, choice = found[1], override.rpartition("=")[2]
        return (
            f"There is a method '{method}' already; set its parts (methods.{method}.KEY=VALUE), or add another one: "
            f"+method@methods.{method}_2={choice}."
        )
    found = re.search(r"Multiple values for (\w+@[\w.]+)\.", failure.text)
    if found and (override := _starting(failure.command.overrides, f"+{found[1]}=")):
        return f"{found[1].partition('@')[2]} has a {found[1].partition('@')[0]}: write {override[1:]}, without the +."
    found = re.search(r"(?:Multiple values for (\w+)\.|^(\w+) appears more than once)", failure.text)
    if found and (override := _starting(failure.command.overrides, f"+{found[1] or found[2]}=")):
        return f"There is a {found[1] or found[2]} already: write {override[1:]}, without the +."
    return None


def _starting(overrides: Sequence[str], start: str) -> str | None:
    """Return the first override with this start, or None."""
    return next((override for override in overrides if override.startswith(start)), None)


def _of_an_override_in_a_file(failure: _Failure) -> str | None:
    """Return which ``override`` in the defaults of a file changes nothing, or None."""
    found = re.search(r"In '([^']+)': Could not override '([^']+)'", failure.text)
    if found is None:
        return None
    return (
        f"{found[1]}.yaml: 'override /{found[2]}' has nothing to override: nothing that its defaults name has this "
        "group. Correct it, or leave out the word override."
    )


def _of_a_choice(failure: _Failure) -> str | None:
    """Return that a group has no such choice, or None."""
    if (found := re.search(r"Could not find '([^']+)'", failure.text)) is None:
        return None
    group, _, choice = found[1].rpartition("/")
    return _no_choice(group, choice, failure.command.folders)


def _of_a_value(failure: _Failure) -> str | None:
    """Return that an override has several values, or one for a group, or None."""
    if found := re.search(
        r"(?:Ambiguous value for argument|Sweep parameters) '([^=']+)=(.*?)'(?= |$)", failure.text
    ):
        key, values = found[1], found[2]
        list_hint = "" if "(" in values else f"; one list is {key}=[{values}]"
        return f"{key} is given several values; mhrun -m runs each of them{list_hint}."
    if found := re.search(r"Error merging override \+*([^=\s]+)=(.*)", failure.text):
        if schedule := re.fullmatch(rf"methods\.\w+\.schedules\.({'|'.join(CONSTANTS)})", found[1]):
            return (
                f"{found[1]}={found[2]} does not fit: '{schedule[1]}' takes a number, which is constant, or a schedule "
                f"(schedule@{found[1]}=NAME); with mhrun -m and without brackets each value is a run."
            )
        return (
            f"{found[1]}={found[2]} does not fit: '{found[1]}' is a group of settings; set one of them "
            f"({found[1]}.KEY=VALUE). --cfg job shows them."
        )
    return None


def _of_a_key(failure: _Failure) -> str | None:
    """Return which key or part of the overrides does not exist, or None."""
    command = failure.command
    if found := re.search(r"Could not delete from config\. '([^']+)' does not exist", failure.text):
        return f"~{found[1]} removes nothing: {members_hint(found[1], command)}"
    for override in command.overrides:
        key = override.lstrip("+~").split("=", 1)[0]
        if "@" in key and f"To append to your default list use +{override}" in failure.text:
            return why_no_part(override, command)
        if key and re.search(rf"(?:override|key|Key)[^']*'{re.escape(key)}'", failure.text):
            hint = key_hint(key, command)
            return hint if hint.startswith("'") else f"There is no setting '{key}'.{hint}"
    return None


# The first that applies: a missing experiment is a missing choice, too.
_EXPLANATIONS = (
    _of_a_reference,
    _of_an_experiment,
    _of_something_added_twice,
    _of_an_override_in_a_file,
    _of_a_choice,
    _of_a_value,
    _of_a_key,
)


def _no_choice(group: str, choice: str, folders: Sequence[Path]) -> str:
    """Return that a group has no choice `choice`, and the choices or groups that exist."""
    if needs := _INSTALLED.get(choice.split("_")[0]) if group == "hydra/launcher" else None:
        return f"The launcher '{choice}' is not installed; pip install {needs}."
    for folder in folders:
        beside = folder.parent / group / f"{choice}.yaml"
        if folder.name == "conf" and beside.is_file():
            return f"'{beside}' is not read, as the project has a folder conf; move it to '{folder / group}'."
    choices = [p.stem for place in [CONF, *folders] for p in (place / group).glob("*.yaml")]
    if group == "hydra/launcher":
        choices += ["basic", "joblib", "submitit_local"]  # of Hydra and its plugins
    if not choices:
        groups = sorted({p.name for place in [CONF, *folders] for p in place.glob("[!_.]*") if p.is_dir()})
        return (
            f"There is no group '{group}' of {choice!r}.{nearest(group, groups)} The groups are "
            f"{', '.join(groups)}."
        )
    return (
        f"There is no {group} '{choice}'.{nearest(choice, choices)} There are: {', '.join(sorted(choices))}."
    )
