"""Outlines of experiments for lists and completion: an experiment's file and its defaults, read without Hydra."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mhrun import yaml_file
from mhrun.defaults_list import defaults_of
from mhrun.errors import UserError
from mhrun.paths import CONF, claims_path

_COMMENT = re.compile(r"^(\w+):(?:[ \t][^#\n]*)?[ \t]#[ \t]*(.+)$", re.MULTILINE)
_OWN_KEYS = (
    "defaults",
    "title",
    "reproduces",
    "data",
    "model",
    "methods",
    "report",
    "scales",
    "hydra",
    "runtime",
)


class Outline(NamedTuple):
    """The outline of an experiment. Values are unresolved, with ``${...}``."""

    title: str
    reproduces: str
    paper: str  # key of the paper: a folder in experiments/; empty without a paper
    scales: list[str]
    settings: dict[str, str]  # top-level setting -> its comment
    methods: dict[str, str]  # name -> the method's file in conf/method, without .yaml


class Paper(NamedTuple):
    """A paper as cited in lists."""

    cited: str  # Li & Wong 2017
    title: str


def outline(path: Path) -> Outline:
    """Return the outline of an experiment's file.

    Raises:
        UserError: the file, or one of its defaults, cannot be read.
    """
    return _outline(path, ())


def settings_and_comments(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings of a file, and key -> its comment.

    Raises:
        UserError: it holds no settings.
    """
    if path.is_relative_to(CONF):  # bundled files need no checks, which would take most of the time
        return _bundled_file(path)
    text = yaml_file.read(path)
    settings = yaml_file.loads(text, str(path)) or {}
    if not isinstance(settings, dict):
        raise UserError(f"'{path}' holds no settings (KEY: VALUE); correct it.")
    return settings, dict(_COMMENT.findall(text))


@cache
def _bundled_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    text = yaml_file.read(path)
    return yaml_file.loads_trusted(text) or {}, dict(_COMMENT.findall(text))


def _outline(path: Path, above: tuple[Path, ...]) -> Outline:
    settings, comments = settings_and_comments(path)
    base = Outline("", "", "", [], {}, {})
    for default in defaults_of(settings):
        if not default.key:
            parent = path.parent / f"{default.choice}.yaml"
            if parent.is_file() and parent not in (*above, path):
                base = _over(base, _outline(parent, (*above, path)))
        elif default.group.rpartition("/")[2] == "method" and default.package.startswith("methods."):
            base.methods[default.package.removeprefix("methods.")] = default.choice.rpartition("/")[2]
    report, scales, methods = (_group(settings.get(key)) for key in ("report", "scales", "methods"))
    top = Outline(
        str(settings.get("title") or ""),
        str(settings.get("reproduces") or ""),
        str(report.get("paper") or ""),
        [str(name) for name in scales],
        {str(key): comments.get(str(key), "") for key in settings if key not in _OWN_KEYS},
        {str(name): "" for name in methods if str(name) not in base.methods},
    )
    return _over(base, top)


def _over(base: Outline, top: Outline) -> Outline:
    """Return an outline overridden by another."""
    settings = {
        key: top.settings.get(key) or base.settings.get(key, "") for key in base.settings | top.settings
    }
    return Outline(
        top.title or base.title,
        top.reproduces or base.reproduces,
        top.paper or base.paper,
        list(dict.fromkeys(base.scales + top.scales)),
        settings,
        base.methods | {name: file for name, file in top.methods.items() if file or name not in base.methods},
    )


def _group(node: Any) -> Mapping[str, Any]:
    return node if isinstance(node, Mapping) else {}


def method_parts(file: str) -> list[tuple[str, str]]:
    """Return group and path of each part that a method of conf/method chooses: ``("rule", "kernel.rule")``."""
    path = CONF / "method" / f"{file}.yaml"
    if not file or not path.is_file():
        return []
    group_of: dict[str, str] = {}
    for default in defaults_of(settings_and_comments(path)[0]):
        if default.package:
            group_of[default.package] = default.group
        elif not default.key and default.choice != file:
            group_of |= {place: group for group, place in method_parts(default.choice)}
    return [(group, place) for place, group in group_of.items()]


@cache
def paper(key: str) -> Paper | None:
    """Return the paper of a folder in experiments/, of mhrun or of the user, or None."""
    if (path := claims_path(key)) is None:
        return None
    head = re.split(
        r"^(?:experiments|sweeps):", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE
    )[0]
    fields = _group(_group(yaml_file.loads_trusted(head)).get("paper"))
    names = [name.split()[-1] for name in str(fields.get("authors", "")).split(", ") if name]
    cited = " & ".join(names) if len(names) < 3 else f"{names[0]} et al."
    return Paper(f"{cited} {fields.get('year', '')}".strip(), str(fields.get("title", "")))


@cache
def seconds_at_paper_scale() -> dict[str, float]:
    """Return experiment -> seconds of its methods at scale=paper, on two cores of an AMD EPYC.

    `make docs-results` records them; experiments without such a run are left out.
    """
    durations = _group(yaml_file.load(CONF / "durations.yaml"))
    return {str(name): float(value) for name, value in durations.items()}
