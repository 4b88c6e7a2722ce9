"""The files of methods, conf/method/NAME.yaml, read without Hydra."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from mhrun import yaml_file
from mhrun.defaults_list import defaults_of
from mhrun.names import is_name
from mhrun.paths import CONF
from mhrun.yaml_file import texts_of

MISSING = "???"
"""A value that a file leaves to who uses it."""

_REFERENCE = re.compile(r"\$\{(oc\.select:)?([a-z_][\w.]*)[,}]")  # ${key} or ${oc.select:key,default}


def method_names() -> list[str]:
    """Return the names of the methods of conf/method."""
    return sorted(path.stem for path in (CONF / "method").glob("*.yaml"))


def is_method(name: str) -> bool:
    """Return whether conf/method has this method."""
    return is_name(name) and (CONF / "method" / f"{name}.yaml").is_file()


@cache
def method_file(name: str) -> Mapping[str, Any]:
    """Return the settings of a method, with the parts of its defaults list in their places; not to be changed."""
    return _composed("method", name)


def references(node: Any) -> dict[str, bool]:
    """Return the settings to which ``${...}`` in a node refer, and whether each has a value without them."""
    found: dict[str, bool] = {}
    for text in texts_of(node):
        for optional, key in _REFERENCE.findall(text):
            found[key] = found.get(key, True) and bool(optional)
    return found


def missing(node: Mapping[str, Any]) -> list[str]:
    """Return the settings of a node that are left open."""
    return [key for key, value in node.items() if value == MISSING]


def _composed(group: str, name: str) -> dict[str, Any]:
    settings, parts = _read(group, name)
    config: dict[str, Any] = {}
    for path, (part_group, choice) in parts.items():
        node = config
        *above, last = path.split(".")
        for key in above:
            node = node.setdefault(key, {})
        node[last] = _composed(part_group, choice)
    return _merged(config, settings)


def _read(group: str, name: str) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """Return the settings of a file and of those it begins from, and its parts: path -> group and name."""
    content = yaml_file.load(CONF / group / f"{name}.yaml")
    settings: dict[str, Any] = {}
    parts: dict[str, tuple[str, str]] = {}
    for default in defaults_of(content):
        if default.key:
            parts[default.package or default.group] = (default.group, default.choice)
        else:
            base, of_base = _read(group, default.choice)
            settings, parts = _merged(settings, base), parts | of_base
    return _merged(settings, {key: value for key, value in content.items() if key != "defaults"}), parts


def _merged(base: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in override.items():
        are_nodes = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if are_nodes else value
    return merged
