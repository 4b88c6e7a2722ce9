"""Folders, for the commands that need no composed configuration."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from mhrun.errors import UserError
from mhrun.paths import CONF


def experiments(folders: Sequence[Path] = ()) -> dict[str, Path]:
    """Return the experiments there are: name -> file."""
    places = [CONF, *folders]
    return {p.stem: p for place in places for p in sorted((place / "experiment").glob("*.yaml"))}


def outputs_of(words: Sequence[str]) -> tuple[Path, list[str]]:
    """Return where runs are kept, and the other words.

    Raises:
        UserError: an option, or a setting that these commands do not have.
    """
    outputs = str(yaml.safe_load((CONF / "config.yaml").read_text())["runtime"]["outputs"])
    rest = []
    for word in words:
        if word.startswith("runtime.outputs="):
            outputs = word.partition("=")[2]
        elif word.startswith("-") or "=" in word:
            raise UserError(f"'{word}' means nothing here; the one setting is runtime.outputs=FOLDER.")
        else:
            rest.append(word)
    return Path(outputs), rest


class Project(NamedTuple):
    """A place of the user's own: configurations, and the code that they name."""

    conf: Path
    folder: Path | None  # that Python files and data files are in; None for an installed package
    modules: list[str]  # that configurations may name


def project(where: str) -> Project:
    """Return a project: a folder, or the name of an installed package with a folder ``conf``.

    A folder holds ``conf/<group>/*.yaml``, or the groups themselves, and Python files or packages beside them.

    Raises:
        UserError: there is neither, a file of it would hide a library, or a configuration one of mhrun's.
    """
    folder = Path(where).expanduser()
    if folder.is_dir():
        folder = folder.resolve()
        conf = folder / "conf" if (folder / "conf").is_dir() else folder
        files = [*folder.glob("*.py"), *(init.parent for init in folder.glob("*/__init__.py"))]
        modules = sorted(path.stem for path in files if path.stem.isidentifier() and path.stem[0] != "_")
        for name in modules:
            _alone(name, folder)
        found = Project(conf, folder, modules)
    else:
        spec = importlib.util.find_spec(where) if where.isidentifier() else None
        places = list(spec.submodule_search_locations or ()) if spec else []
        if not places or not (Path(places[0]) / "conf").is_dir():
            raise UserError(
                f"--project {where}: there is no such folder, nor an installed package of that name with a folder "
                "conf in it; mhrun init DIR makes a project to begin from."
            )
        found = Project(Path(places[0]) / "conf", None, [where])
    for path in sorted(found.conf.glob("*/*.yaml")):
        if (CONF / path.parent.name / path.name).is_file():
            raise UserError(f"{path} has the name of one of mhrun's own configurations; rename it.")
    return found


def _alone(name: str, folder: Path) -> None:
    """Refuse a module of a project that a library, which comes first, would stand in for."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin and not Path(spec.origin).resolve().is_relative_to(folder):
        raise UserError(
            f"{folder / name} has the name of another package ({spec.origin}), which would be taken for it; rename it."
        )
