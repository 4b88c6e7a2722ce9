"""Errors of Hydra and OmegaConf in one line, with the setting or the part that was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from mhrun.cli.checked import NAMED, SETTINGS
from mhrun.cli.configuration.composition import composed
from mhrun.cli.configuration.settings import OF_A_METHOD, OF_A_REPORT
from mhrun.cli.configuration.unread import references_of, taken_settings
from mhrun.cli.configuration.unread_check_overrides import listed, part_of
from mhrun.cli.configuration.without_experiment import added, is_own
from mhrun.cli.places import experiments
from mhrun.errors import UserError, nearest, reason
from mhrun.paths import CONF
from mhrun.store.identity import CONSTANTS, COUNTS


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, what it is wrapped around, and so on."""
    visited = set[int]()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def cause(error: BaseException) -> UserError | None:
    """Return the innermost `UserError` that an error of a library is wrapped around, or None.

    Libraries add lines to it.
    """
    user_errors = [link for link in _chain(error) if isinstance(link, UserError)]
    return user_errors[-1] if user_errors else None


_INSTALLED = {"joblib": "hydra-joblib-launcher", "submitit": "hydra-submitit-launcher", "ray": "ray"}


class _Failure(NamedTuple):
    """A composition that failed."""

    error: Exception
    text: str  # its message in one line
    overrides: Sequence[str]  # of the command line
    folders: Sequence[Path]  # of configurations
    name: str  # of the configuration that was composed


def explained(
    error: Exception, overrides: Sequence[str], folders: Sequence[Path], name: str = "config"
) -> UserError:
    """Return in one line why Hydra cannot compose these overrides with the configuration `name`."""
    if (user_error := cause(error)) is not None:
        return user_error
    failure = _Failure(error, " ".join(str(error).split()), overrides, folders, name)
    lines = (explain(failure) for explain in _EXPLANATIONS)
    return UserError(next(filter(None, lines), None) or reason(error))


def _of_a_reference(failure: _Failure) -> str | None:
    """Return which ``${...}`` cannot be read, or None."""
    grammar = (link for link in _chain(failure.error) if isinstance(link, GrammarParseError))
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
    return (
        f"There is no experiment '{found[1]}'.{nearest(found[1], experiments(failure.folders))} mhrun list shows the "
        f"experiments{'' if failure.folders else '; one of a project needs --project FOLDER'}."
    )


def _of_something_added_twice(failure: _Failure) -> str | None:
    """Return which method or group exists already, or None."""
    found = re.search(r"(?:Multiple values for \S*|^\S*)@methods\.(\w+)\.", failure.text)
    if found and (override := next((w for w in failure.overrides if f"@methods.{found[1]}=" in w), None)):
        method, choice = found[1], override.rpartition("=")[2]
        return (
            f"There is a method '{method}' already; set its parts (methods.{method}.KEY=VALUE), or add another one: "
            f"+method@methods.{method}_2={choice}."
        )
    found = re.search(r"Multiple values for (\w+@[\w.]+)\.", failure.text)
    if found and (override := _starting(failure.overrides, f"+{found[1]}=")):
        return f"{found[1].partition('@')[2]} has a {found[1].partition('@')[0]}: write {override[1:]}, without the +."
    found = re.search(r"(?:Multiple values for (\w+)\.|^(\w+) appears more than once)", failure.text)
    if found and (override := _starting(failure.overrides, f"+{found[1] or found[2]}=")):
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
    return _no_choice(group, choice, failure.folders)


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
    overrides, folders, name = failure.overrides, failure.folders, failure.name
    if found := re.search(r"Could not delete from config\. '([^']+)' does not exist", failure.text):
        return f"~{found[1]} removes nothing: {_members(found[1], overrides, folders, name)}"
    for override in overrides:
        key = override.lstrip("+~").split("=", 1)[0]
        if "@" in key and f"To append to your default list use +{override}" in failure.text:
            return _of_no_part(override, failure)
        if key and re.search(rf"(?:override|key|Key)[^']*'{re.escape(key)}'", failure.text):
            hint = _nearest_key(key, overrides, folders, name)
            return hint if hint.startswith("'") else f"There is no setting '{key}'.{hint}"
    return None


def _of_no_part(override: str, failure: _Failure) -> str:
    """Return why an override ``GROUP@PLACE=NAME`` has no part to replace: no such method or place, or none yet."""
    place = override.split("=", 1)[0].partition("@")[2]
    parent, _, leaf = place.rpartition(".")
    try:
        overrides = _experiment_overrides(failure.overrides, failure.name)
        config: Any = OmegaConf.to_container(
            composed(overrides, failure.folders, failure.name), resolve=False
        )
    except (HydraException, OmegaConfBaseException, UserError):
        config = {}
    methods = [str(method) for method in config.get("methods") or {}]
    if _of_methods(place) is not None and methods and (method := place.split(".")[1]) not in methods:
        return (
            f"There is no method '{method}'.{nearest(method, methods)} The methods are {', '.join(methods)}."
        )
    for part in parent.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    if isinstance(config, Mapping) and "_target_" in config and leaf not in config:
        members = [str(key) for key, value in config.items() if isinstance(value, Mapping)]
        kind = str(config["_target_"]).rpartition(".")[2]
        of_parts = f"; it has {' and '.join(members)}" if members else ""
        return f"{parent} is {kind}, which has no part '{leaf}'{of_parts}."
    return f"{override} replaces a part that is not there; to add it, write +{override}."


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


def _experiment_overrides(overrides: Sequence[str], name: str) -> list[str]:
    """Return the overrides that choose an experiment, or data and a model, and add and remove methods."""
    if name != "config":
        return []
    own = is_own(overrides)
    parts = ("data=", "+data=", "model=", "+model=") if own else ("experiment=",)
    found = [override for override in overrides if override.startswith((*parts, "+method@", "~methods."))]
    return added(found) if own else found


def _nearest_key(key: str, overrides: Sequence[str], folders: Sequence[Path], name: str) -> str:
    """Return the setting that a misspelt key most likely means: all of it, or its last part."""
    try:
        config = OmegaConf.to_container(
            composed(_experiment_overrides(overrides, name), folders, name), resolve=False
        )
    except (HydraException, OmegaConfBaseException, UserError):
        return ""
    keys = [k for k in key_paths(config) if not k.startswith("hydra")]  # type: ignore[arg-type]
    if (
        key in keys
        and any(override.startswith(f"+{key}=") for override in overrides)
        and not _is_group(config, key)
    ):
        return f"'{key}' is there already: write {key}=VALUE, without the +."
    value = next((o.partition("=")[2] for o in overrides if o.partition("=")[0] == key), "")
    if key in keys and value.startswith("{"):
        members = [k.rpartition(".")[2] for k in keys if k.rpartition(".")[0] == key]
        return (
            f"'{key}' has {listed([m for m in members if not m.startswith('_')])}; {key}={value} has another."
        )
    if key in keys:  # a group of parts, of which the experiment has chosen none
        return f" If you mean to add a part, write +{key}=NAME."
    if "." not in key and key in references_of(config):
        return f"'{key}' is read by this experiment, which does not set it: write +{key}={value or 'VALUE'}."
    place, _, leaf = key.rpartition(".")
    takes = dict(taken_settings(config)).get(place, set[str]())
    if leaf in takes:
        return f" {place} takes it, and does not set it: write +{key}={value or 'VALUE'}."
    if key.startswith("report.") and (
        close_of_report := difflib.get_close_matches(leaf, OF_A_REPORT, 1, 0.8)
    ):
        setting = f"report.{close_of_report[0]}"
        return f" Did you mean '{'' if setting in keys else '+'}{setting}'?"
    if name == "check" and (setting := _of_a_part(key, overrides, folders)):
        return f" Did you mean '{setting}'?"
    same_leaf = [k for k in keys if k.rpartition(".")[2] == leaf]
    if (setting_of_method := _of_methods(key)) is not None:
        methods = [str(member) for member in config.get("methods") or {}]  # type: ignore[union-attr]
        if hint := _hint_of_method(key, setting_of_method, keys, methods):
            return hint
        if "." not in setting_of_method and (
            close := difflib.get_close_matches(setting_of_method, OF_A_METHOD, 1, 0.6)
        ):
            same_leaf = [f"+methods.{key.split('.')[1]}.{close[0]}"]
    siblings = {k.rpartition(".")[2]: k for k in keys if k.rpartition(".")[0] == place}
    close_siblings = [siblings[k] for k in difflib.get_close_matches(leaf, siblings, 1, 0.6)]
    if not close_siblings and (close := difflib.get_close_matches(leaf, sorted(takes), 1, 0.75)):
        return f" Did you mean '+{place}.{close[0]}'?"
    # Those of another method would not be read by this one.
    near = [k for k in same_leaf if not key.startswith(f"{k}.")]
    near = [k for k in near if k.split(".")[:2] == key.split(".")[:2] or not _of_methods(k)]
    if not (close_siblings or near) and "_target_" in siblings:
        return f" {place} has {listed([k for k in siblings if not k.startswith('_')]) or 'no settings'}."
    candidates = [k for k in keys if not key.startswith(f"{k}.")]
    close = close_siblings or same_leaf or difflib.get_close_matches(key, candidates, 1, 0.6)
    shows = "mhrun experiment=NAME --cfg job shows them all."
    if name == "check":
        shows = f"check has {listed(SETTINGS)}, and what a part has as {part_of(overrides)}.KEY."
    return f" Did you mean '{close[0]}'?" if close else f" {shows}"


def _hint_of_method(key: str, setting: str, keys: Sequence[str], methods: Sequence[str]) -> str:
    """Return what is meant by `setting` in a key of a method, empty if that is not known.

    Args:
        key: of the method.
        setting: the key without the method's name.
        keys: of the configuration.
        methods: that it has.
    """
    method = key.split(".")[1]
    if methods and method not in methods:
        return f"{nearest(method, methods)} The methods are {', '.join(methods)}."
    if not methods:
        return f" No method is named; +method@methods.{method}=NAME adds one."
    if setting in COUNTS:
        return f" All methods have the experiment's {setting}; for one with another, write +{key}=VALUE."
    if of_another := next((k for k in keys if _of_methods(k) == setting), None):
        return f" '{of_another}' is one; to set it here too, write +{key}=VALUE."
    if deeper := _deeper(setting, [k for k in keys if k.startswith(f"methods.{method}.")]):
        return f" Did you mean '{deeper}'?"
    return ""


def _of_a_part(key: str, overrides: Sequence[str], folders: Sequence[Path]) -> str:
    """Return the override that sets `key` of a part that the overrides of a check name, empty if no part takes it."""
    value = next(
        (override.partition("=")[2] for override in overrides if override.lstrip("+").startswith(f"{key}=")),
        "VALUE",
    )
    for override in overrides:
        part = override.partition("=")[0]
        if part not in NAMED:
            continue
        try:
            node: Any = OmegaConf.to_container(composed([override], folders, "check"), resolve=False)
        except (HydraException, OmegaConfBaseException, UserError):
            continue
        for path, takes in taken_settings(node[part], part):
            if key in takes:
                is_set = f"{path}.{key}" in key_paths(node)
                return f"{'' if is_set else '+'}{path}.{key}={value}"
    return ""


def _of_methods(key: str) -> str | None:
    """Return what a key sets of a method, without the method's name; None if it is not of a method."""
    group, _, rest = key.partition(".")
    _, _, setting = rest.partition(".")
    return setting if group == "methods" and setting else None


def _deeper(setting: str, keys: Sequence[str]) -> str | None:
    """Return the key of a method that a setting is a part of, as ``schedules.step_size.start`` of ``stepsize``.

    None if no key has it.
    """
    wanted = setting.replace("_", "").lower()
    found = [
        key
        for key in keys
        if wanted in (part.replace("_", "").lower() for part in key.split(".")[2:])
        and not key.endswith("._target_")
        and not any(other.startswith(f"{key}.") for other in keys)  # a group
    ]
    values = [key for key in found if key.rpartition(".")[2] in (setting, "step_size", "start")]
    return next(iter(values or found), None)


def _members(key: str, overrides: Sequence[str], folders: Sequence[Path], name: str) -> str:
    """Return the members of a key's group, which does not contain the key."""
    experiment_overrides = [
        override for override in overrides if override.startswith("experiment=") and name == "config"
    ]
    group, _, leaf = key.rpartition(".")
    try:
        config: Any = OmegaConf.to_container(composed(experiment_overrides, folders, name), resolve=False)
        for part in group.split(".") if group else []:
            config = config[part]
        members = [str(member) for member in config]
    except (HydraException, OmegaConfBaseException, UserError, KeyError, TypeError):
        return f"there is no '{key}'."
    return f"{group or 'the configuration'} has {', '.join(members)}.{nearest(leaf, members)}"


def _is_group(config: Any, key: str) -> bool:
    """Return whether a key of a configuration holds settings, or nothing yet."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config is None or isinstance(config, Mapping)


def key_paths(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of each key of a configuration, a group before its members."""
    for key, value in node.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from key_paths(value, f"{prefix}{key}.")
