"""Keys on the command line that a configuration does not have: what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhrun.cli.checked import NAMED, SETTINGS
from mhrun.cli.configuration.composition import composed
from mhrun.cli.configuration.settings import OF_A_METHOD, OF_A_REPORT
from mhrun.cli.configuration.unread import references_of, taken_settings
from mhrun.cli.configuration.unread_check_overrides import part_of
from mhrun.cli.configuration.without_experiment import added, is_own
from mhrun.errors import UserError, nearest
from mhrun.messages import listed
from mhrun.numbers import is_number_text
from mhrun.store.identity import COUNTS


class Command(NamedTuple):
    """Overrides, and what they are composed with."""

    overrides: Sequence[str]  # of the command line
    folders: Sequence[Path]  # of configurations
    name: str  # of the primary configuration

    def compose(self, overrides: Sequence[str]) -> dict[str, Any] | None:
        """Return the configuration with other overrides, not resolved; None if they cannot be composed."""
        try:
            config: Any = OmegaConf.to_container(composed(overrides, self.folders, self.name), resolve=False)
        except (HydraException, OmegaConfBaseException, UserError):
            return None
        return config

    def experiment(self) -> dict[str, Any] | None:
        """Return the configuration of the experiment that the overrides choose, with its methods, or None."""
        return self.compose(_experiment_overrides(self.overrides, self.name))


def why_no_part(override: str, command: Command) -> str:
    """Return why an override ``GROUP@PLACE=NAME`` has no part to replace: no such method or place, or none yet."""
    place = override.split("=", 1)[0].partition("@")[2]
    parent, _, leaf = place.rpartition(".")
    config: Any = command.experiment() or {}
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


def members_hint(key: str, command: Command) -> str:
    """Return the members of a key's group, which does not contain the key."""
    is_run = command.name == "config"
    config: Any = command.compose(
        [override for override in command.overrides if is_run and override.startswith("experiment=")]
    )
    group, _, leaf = key.rpartition(".")
    try:
        for part in group.split(".") if group else []:
            config = config[part]
        members = [str(member) for member in config]
    except (KeyError, TypeError):
        return f"there is no '{key}'."
    return f"{group or 'the configuration'} has {', '.join(members)}.{nearest(leaf, members)}"


class _UnknownKey(NamedTuple):
    """A key of an override that cannot be set in a configuration."""

    key: str
    value: str  # of its override without a +, or empty
    command: Command
    config: dict[str, Any]  # of the experiment, or of the check
    keys: Sequence[str]  # of `config`

    @property
    def group(self) -> str:
        """The key without its last part."""
        return self.key.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        """The last part of the key."""
        return self.key.rpartition(".")[2]

    def takes(self) -> set[str]:
        """Return the settings of the part in whose group the key is."""
        return dict(taken_settings(self.config)).get(self.group, set())

    def is_added(self) -> bool:
        """Return whether an override adds the key."""
        return any(override.startswith(f"+{self.key}=") for override in self.command.overrides)


def key_hint(key: str, command: Command) -> str:
    """Return what a key most likely means that cannot be set, empty if nothing is known.

    A hint that begins with the key in quotes is a message; any other continues one that there is no such setting.
    """
    if (config := command.experiment()) is None:
        return ""
    given = (override.lstrip("+").partition("=") for override in command.overrides)
    value = next((value for name, _, value in given if name == key), "")
    keys = [k for k in key_paths(config) if not k.startswith("hydra")]
    unknown = _UnknownKey(key, value, command, config, keys)
    return next(filter(None, (hint(unknown) for hint in _HINTS)))


def _exists(unknown: _UnknownKey) -> str | None:
    """Return how a key that the configuration has is set."""
    key, keys = unknown.key, unknown.keys
    if key not in keys:
        return None
    if unknown.is_added() and (is_number_text(unknown.value) or not _is_group(unknown.config, key)):
        return f"'{key}' is there already: write {key}=VALUE, without the +."
    if unknown.value.startswith("{"):
        members = [k.rpartition(".")[2] for k in keys if k.rpartition(".")[0] == key]
        settings = listed([member for member in members if not member.startswith("_")])
        return f"'{key}' has {settings}; {key}={unknown.value} has another."
    # A group of parts, of which the experiment has chosen none
    return f" If you mean to add a part, write +{key}=NAME."


def _may_be_added(unknown: _UnknownKey) -> str | None:
    """Return how a key is set that the experiment or the part reads, and the configuration does not have."""
    key, value = unknown.key, unknown.value or "VALUE"
    if "." not in key and key in references_of(unknown.config):
        return f"'{key}' is read by this experiment, which does not set it: write +{key}={value}."
    if unknown.leaf in unknown.takes():
        return f" {unknown.group} takes it, and does not set it: write +{key}={value}."
    return None


def _of_the_report(unknown: _UnknownKey) -> str | None:
    """Return the setting of the report with a similar name, or None."""
    if not unknown.key.startswith("report."):
        return None
    close = difflib.get_close_matches(unknown.leaf, OF_A_REPORT, 1, 0.8)
    if not close:
        return None
    setting = f"report.{close[0]}"
    return f" Did you mean '{'' if setting in unknown.keys else '+'}{setting}'?"


def _of_a_checked_part(unknown: _UnknownKey) -> str | None:
    """Return the override that sets the key in a part that a check names; None if no part takes it."""
    key, command = unknown.key, unknown.command
    if command.name != "check":
        return None
    value = next(
        (
            override.partition("=")[2]
            for override in command.overrides
            if override.lstrip("+").startswith(f"{key}=")
        ),
        "VALUE",
    )
    for override in command.overrides:
        part = override.partition("=")[0]
        if part not in NAMED:
            continue
        if (node := command.compose([override])) is None:
            continue
        for path, takes in taken_settings(node[part], part):
            if key in takes:
                is_set = f"{path}.{key}" in key_paths(node)
                return f" Did you mean '{'' if is_set else '+'}{path}.{key}={value}'?"
    return None


def _of_a_method(unknown: _UnknownKey) -> str | None:
    """Return how a method is given a setting: one of the counts, of another method, or of one of its parts."""
    key, keys = unknown.key, unknown.keys
    if (setting := _of_methods(key)) is None:
        return None
    methods = [str(method) for method in unknown.config.get("methods") or {}]
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
    return None


def _similar(unknown: _UnknownKey) -> str:
    """Return the key with a similar name, or where all settings are shown."""
    key, group, leaf, keys = unknown.key, unknown.group, unknown.leaf, unknown.keys
    same_leaf = [k for k in keys if k.rpartition(".")[2] == leaf]
    setting = _of_methods(key)
    if (
        setting is not None
        and "." not in setting
        and (close := difflib.get_close_matches(setting, OF_A_METHOD, 1, 0.6))
    ):
        same_leaf = [f"+methods.{key.split('.')[1]}.{close[0]}"]
    siblings = {k.rpartition(".")[2]: k for k in keys if k.rpartition(".")[0] == group}
    close_siblings = [siblings[k] for k in difflib.get_close_matches(leaf, siblings, 1, 0.6)]
    if not close_siblings and (close := difflib.get_close_matches(leaf, sorted(unknown.takes()), 1, 0.75)):
        return f" Did you mean '+{group}.{close[0]}'?"
    # Those of another method would not be read by this one.
    near = [k for k in same_leaf if not key.startswith(f"{k}.")]
    near = [k for k in near if k.split(".")[:2] == key.split(".")[:2] or not _of_methods(k)]
    if not (close_siblings or near) and "_target_" in siblings:
        return f" {group} has {listed([k for k in siblings if not k.startswith('_')]) or 'no settings'}."
    candidates = [k for k in keys if not key.startswith(f"{k}.")]
    if close := close_siblings or same_leaf or difflib.get_close_matches(key, candidates, 1, 0.6):
        return f" Did you mean '{close[0]}'?"
    if unknown.command.name == "check":
        return (
            f" check has {listed(SETTINGS)}, and what a part has as {part_of(unknown.command.overrides)}.KEY."
        )
    return " mhrun experiment=NAME --cfg job shows them all."


# The first that is known; the last always is.
_HINTS = (_exists, _may_be_added, _of_the_report, _of_a_checked_part, _of_a_method, _similar)


def _experiment_overrides(overrides: Sequence[str], name: str) -> list[str]:
    """Return the overrides that choose an experiment, or data and a model, and add and remove methods."""
    if name != "config":
        return []
    own = is_own(overrides)
    parts = ("data=", "+data=", "model=", "+model=") if own else ("experiment=",)
    found = [override for override in overrides if override.startswith((*parts, "+method@", "~methods."))]
    return added(found) if own else found


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
