"""Commands that a report shows: with the project that they need, and those that test the user's parts."""

from __future__ import annotations

import importlib.util
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from mhrun.build import trusted
from mhrun.paths import CONF, user_folders

_MAX_DATA = 2000  # the data of `mhrun check`, and the largest minibatch that it can test


def check_commands(kernel: Any) -> Iterator[str]:
    """Yield ``mhrun check ... CLASS KEY=VALUE ...`` for each part of a configured kernel that is not of this package.

    The settings are all of those that the run has: the defaults of the class may be others, or there may be none. Parts
    within a part are among its settings.
    """
    if not isinstance(kernel, Mapping):
        return
    target = str(kernel.get("_target_", ""))
    if target and not target.startswith("mhrun."):
        overrides = [f"{key}={_written(value)}" for key, value in kernel.items() if _can_be_set(key, value)]
        yield shlex.join(["mhrun", "check", *_where(target.partition(".")[0]), target, *overrides])
        return
    for value in kernel.values():
        yield from check_commands(value)


def _can_be_set(key: str, value: Any) -> bool:
    """Return whether a check takes a setting: its minibatch size is a number, of fewer data than it has."""
    return key[:1] != "_" and (key != "m" or (type(value) is int and 0 < value <= _MAX_DATA))


def _written(value: Any) -> str:
    """Return a value as one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...").replace("${", "\\${")  # no interpolation


def _where(module: str) -> list[str]:
    """Return the option by which a command finds a module: the project that has it, or the package if installed."""
    for folder in user_folders():
        if (folder / f"{module}.py").is_file() or (folder / module).is_dir():
            return _project(folder)
    if importlib.util.find_spec(module) is not None:
        return ["--trust", module]
    return ["--project", "DIR"]  # of a report that is read elsewhere


def project_of(experiment: str) -> list[str]:
    """Return the option by which a command finds an experiment: none for a bundled one, else ``--project FOLDER``.

    The project is a folder or an installed package; ``DIR`` where a report is read without it.
    """
    file = Path("experiment", f"{experiment}.yaml")
    if (CONF / file).is_file():
        return []
    for folder in user_folders():
        if any((place / file).is_file() for place in (folder / "conf", folder)):
            return _project(folder)
    for package in trusted()[1:]:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        places = (spec.submodule_search_locations if spec else None) or ()
        if any((Path(place) / "conf" / file).is_file() for place in places):
            return ["--project", package]
    return ["--project", "DIR"]


def _project(folder: Path) -> list[str]:
    """Return the option that names a project's folder, as seen from the working directory."""
    is_near = folder.resolve().is_relative_to(Path.cwd())
    return ["--project", os.path.relpath(folder) if is_near else str(folder)]
