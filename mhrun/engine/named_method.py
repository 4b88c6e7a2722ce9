"""The Python expression for a method that the command line knows by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import yaml

import mhrun
from mhrun import yaml_file
from mhrun.build import trusted_object
from mhrun.defaults_list import defaults_of
from mhrun.names import is_name
from mhrun.paths import CONF

_SELECT = re.compile(r"\$\{oc\.select:[\w.]+,([^{}]*)\}")  # ${oc.select:key,default}
_UNKNOWN = "..."  # an argument that only the user knows


def in_python(name: str) -> str:
    """Return the kernel of a method of conf/method as Python, with its surrogate; empty if there is no such method.

    It is made from the method's YAML files. Settings that are a class's defaults are left out.
    """
    if not is_name(name) or not (CONF / "method" / f"{name}.yaml").is_file():
        return ""
    node = _composed("method", name)
    surrogate = (node.get("target") or {}).get("surrogate", "none")
    argument = f' with surrogate="{surrogate}"' if surrogate != "none" else ""
    return f"{_written(node['kernel'])}{argument}"


def _composed(group: str, name: str) -> dict[str, Any]:
    """Return a configuration with the parts of its defaults in their places."""
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


def _written(node: Mapping[str, Any]) -> str:
    """Return a part as a call of its class."""
    target = str(node["_target_"])
    name = target.rpartition(".")[2]
    callee = f"mhrun.{name}" if name in mhrun.__all__ else target
    arguments, in_order = [], True
    for key, parameter in inspect.signature(trusted_object(target)).parameters.items():
        value = _value(node.get(key, parameter.default))
        is_left_out = value == parameter.default or (
            value is _UNKNOWN and parameter.default is not parameter.empty
        )
        if key not in node or is_left_out:
            in_order = False
            continue
        is_part = isinstance(value, Mapping) and "_target_" in value
        text = _written(value) if is_part else _UNKNOWN if value is _UNKNOWN else repr(value)
        text = text.replace("'", '"') if isinstance(value, str) else text
        arguments.append(text if in_order and is_part else f"{key}={text}")
    return f"{callee}({', '.join(arguments)})"


def _value(value: Any) -> Any:
    """Return a setting without its ${...}: the default of a choice, or a placeholder if it has none."""
    if not isinstance(value, str) or "${" not in value:
        return value
    found = _SELECT.fullmatch(value)
    return _UNKNOWN if found is None else yaml.safe_load(found[1])
