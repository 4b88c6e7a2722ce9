"""Digest of the inputs of a run's page: if it changes, the page is rebuilt."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mhrun.build import trusted
from mhrun.paths import EXPERIMENTS
from mhrun.report.claims.judge import claims_file
from mhrun.report.run import labels
from mhrun.store.folder import RunFolder


def page_digest(folder: RunFolder) -> str:
    """Return the digest of all that the page of a complete run depends on but the code of this package."""
    config, summary = folder.config(), folder.summary() or {}
    spec = config.get("report") or {}
    claims = claims_file(config)
    content = {
        "report": spec,
        "title": config.get("title"),
        "reproduces": config.get("reproduces"),
        "labels": labels(config, summary.get("methods", {})),
        "departures": (config.get("runtime") or {}).get("departures"),
        "claims": claims.read_text(encoding="utf-8", errors="replace")
        if claims and claims.is_file()
        else None,
        "sources": {module: source(module) for module in sorted(set(_modules(spec)))},
        "finished": summary.get("finished"),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:12]


@cache
def source(module: str) -> str:
    """Return the text of a module that report functions are in; of an experiment's, that of all experiments.

    It is read once: the text that this process found is that of the code that it runs.
    """
    if module.split(".")[0] in trusted():
        try:
            spec = importlib.util.find_spec(module)
        except ImportError:
            spec = None
        paths = [Path(spec.origin)] if spec and spec.origin else []
    elif all(part.isidentifier() for part in module.split(".")):
        # Experiments share functions; claims are looked at for themselves.
        kinds = [EXPERIMENTS.rglob(f"*.{kind}") for kind in ("py", "yaml", "md")]
        paths = sorted(path for kind in kinds for path in kind if path.name != "claims.yaml")
    else:
        paths = []
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file())


def _modules(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the modules of the functions that a report names."""
    for node in spec.values():
        for path in node.values() if isinstance(node, Mapping) else [node]:
            if isinstance(path, str) and "." in path:
                yield path.rpartition(".")[0]
