"""A user's project: a folder, or an installed package, with configurations and the code that they name."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mhrun.errors import UserError
from mhrun.paths import CONF, expanded


class Project(NamedTuple):
    """A user's project: configurations, and the code that they name."""

    conf: Path
    folder: Path | None  # of Python files and data files; None for an installed package
    modules: list[str]  # that configurations may name


def project(where: str) -> Project:
    """Return a project: a folder, or the name of an installed package with a folder ``conf``.

    A folder holds ``conf/<group>/*.yaml``, or the groups themselves, and Python files or packages beside them.

    Raises:
        UserError: it does not exist, or one of its files would hide a library or a configuration of mhrun.
    """
    folder = expanded(where)
    if folder.is_dir():
        folder = folder.resolve()
        check_separator(folder, f"--project {where}")
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
                "conf in it; mhrun init DIR creates a project."
            )
        found = Project(Path(places[0]) / "conf", None, [where])
    for path in sorted(found.conf.glob("*/*.yaml")):
        if (CONF / path.parent.name / path.name).is_file():
            raise UserError(f"{path} has the name of one of mhrun's own configurations; rename it.")
    return found


def check_separator(folder: Path, what: str) -> None:
    """Refuse a project whose path has the character that separates folders in the environment."""
    if os.pathsep in str(folder.absolute()):
        raise UserError(f"{what}: its path has a {os.pathsep!r}; rename the folder.")


def configurations(folder: Path) -> dict[str, bytes]:
    """Return the configuration files in a project's folder that can be read: path in it -> content."""
    conf = folder / "conf" if (folder / "conf").is_dir() else folder
    found = {}
    for path in conf.glob("*/*.yaml"):
        with suppress(OSError):
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def shown(folders: Sequence[Path]) -> str:
    """Return the folders of a project in words, as seen from the working directory."""
    here = Path.cwd()
    return " and ".join(str(f.relative_to(here) if f.is_relative_to(here) else f) for f in folders)


def _shown(folder: Path, name: str) -> Path:
    """Return the file or the folder of a module."""
    return path if (path := folder / f"{name}.py").is_file() else folder / name


def _alone(name: str, folder: Path) -> None:
    """Refuse a module of a project with the name of a library, which would be imported instead."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin and not Path(spec.origin).resolve().is_relative_to(folder):
        raise UserError(
            f"{_shown(folder, name)} has the name of another package ({spec.origin}), which would be taken for it; "
            "rename it, or, if that is of another project in this session, open this one in another process."
        )
