"""Labels of methods one of whose parts the command line replaces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_PART = re.compile(r"[+]{0,2}(?P<part>\w+)@methods\.(?P<method>\w+)\.kernel\S*?=(?P<name>[\w.]+)")
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
