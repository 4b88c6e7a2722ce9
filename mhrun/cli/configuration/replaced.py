"""Parts that the command line replaces: the labels of their methods, and settings that the experiment gave."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mhrun.build import trusted_object
from mhrun.errors import UserError

_PART = re.compile(r"[+]{0,2}(?P<part>\w+)@methods\.(?P<method>\w+)\.kernel\S*?=(?P<name>[\w.]+)")
_PLACED = re.compile(r"[+]{0,2}\w+@(?P<place>[\w.]+)=(?P<name>\w+)")
_LABEL = re.compile(r"[+]{0,2}methods\.(?P<method>\w+)\.label=.*")


def with_replaced_parts(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a configuration in which labels of methods name their replaced parts: "MINT (rule: barker)".

    A label that the overrides give is kept. Labels change no number, and no digest.

    Args:
        config: resolved.
        overrides: the overrides that it was composed from; in a sweep, those that are the same in all jobs.
    """
    labelled = {found["method"] for override in overrides if (found := _LABEL.fullmatch(override))}
    parts: dict[str, list[str]] = {}
    for override in overrides:
        found = _PART.fullmatch(override)
        if found and found["method"] in config["methods"] and found["method"] not in labelled:
            parts.setdefault(found["method"], []).append(f"{found['part']}: {found['name']}")
    methods = {
        name: node
        | ({"label": f"{node.get('label') or name} ({', '.join(parts[name])})"} if name in parts else {})
        for name, node in config["methods"].items()
    }
    return {**config, "methods": methods}


def check_replaced(config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Refuse a part on the command line where the experiment's file has settings that this part does not take.

    Args:
        config: resolved.
        overrides: the overrides that it was composed from.

    Raises:
        UserError: there is one.
    """
    given = {override.lstrip("+").partition("=")[0] for override in overrides}
    for override in overrides:
        if (found := _PLACED.fullmatch(override)) is None:
            continue
        node: Any = config
        for key in found["place"].split("."):
            node = node.get(key) if isinstance(node, Mapping) else None
        left = [key for name in _not_taken(node) if (key := f"{found['place']}.{name}") not in given]
        if left:
            raise UserError(
                f"{override}: the experiment gives {' and '.join(left)}, which {found['name']} does not take; leave "
                f"{'it' if len(left) == 1 else 'them'} out with {' '.join(f'~{key}' for key in left)}."
            )


def _not_taken(node: Any) -> list[str]:
    """Return the settings of a part that it does not take; of a part that cannot be made, none."""
    if not isinstance(node, Mapping) or "_target_" not in node:
        return []
    try:
        parameters = inspect.signature(trusted_object(str(node["_target_"]))).parameters
    except (UserError, TypeError, ValueError):
        return []
    return [str(key) for key in node if key != "_target_" and key not in parameters]
