"""What makes two runs the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# What changes no number that is computed: where things are put and how they are shown.
_COSMETIC = ("runtime", "report", "scales", "title", "reproduces")


def identity(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a resolved configuration that decides the numbers."""
    kept = {key: value for key, value in config.items() if key not in _COSMETIC}
    methods = kept.get("methods") or {}
    kept["methods"] = {
        name: {key: value for key, value in method.items() if key != "label"}
        for name, method in methods.items()
    }
    return kept


def digest(config: Mapping[str, Any]) -> str:
    """Return the name of the run of this configuration: twelve hexadecimal digits."""
    text = json.dumps(identity(config), sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
