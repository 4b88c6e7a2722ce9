"""Folders and projects, for commands that need no composed configuration."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from mhrun import yaml_file
from mhrun.errors import UserError
from mhrun.names import is_name
from mhrun.paths import CONF


def experiments(folders: Sequence[Path] = ()) -> dict[str, Path]:
    """Return all experiments, name -> file; files with invalid names are left out."""
    files = (p for place in [CONF, *folders] for p in sorted((place / "experiment").glob("*.yaml")))
    return {path.stem: path for path in files if is_name(path.stem)}


def endless_defaults(words: Sequence[str], folders: Sequence[Path]) -> str:
    """Return a message that names the file whose defaults include itself, for an endless composition."""
    chosen = next((word.partition("=")[2] for word in words if word.startswith("experiment=")), "")
    path = experiments(folders).get(chosen)
    found = None if path is None else _circle(path, path.parent.parent, [])
    if found is None:
        return "these settings are too deep: groups, lists or defaults in one another."
    return f"'{found[0]}', line {found[1]}: its defaults include {found[2]}, which includes it again; remove one."


def _circle(path: Path, root: Path, above: list[Path]) -> tuple[Path, int, str] | None:
    """Return file, line and entry of the first default that includes a file above it."""
    for line, entry in _defaults(path, root):
        place = root / f"{entry}.yaml"
        if place in [*above, path]:
            return path, line, entry
        if place.is_file() and (found := _circle(place, root, [*above, path])) is not None:
            return found
    return None


def _defaults(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yield line and path from the root, without .yaml, of each configuration in a file's defaults."""
    node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    lists = [value.value for key, value in node.value if key.value == "defaults"] if node else []
    for item in lists[0] if lists and isinstance(lists[0], list) else ():
        (key, value) = (None, item) if isinstance(item, yaml.ScalarNode) else item.value[0]
        group = "" if key is None else str(key.value).partition("@")[0].rpartition(" ")[2]
        if (
            isinstance(value, yaml.ScalarNode)
            and value.value != "_self_"
            and "override" not in str(key and key.value)
        ):
            entry = f"{group}/{value.value}" if group else value.value
            own = path.parent.relative_to(root).as_posix()
            yield item.start_mark.line + 1, entry.lstrip("/") if entry.startswith("/") else f"{own}/{entry}"


def outputs_of(words: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the folder of runs, and the other words.

    Raises:
        UserError: an option or a setting that these commands do not have.
    """
    outputs = str(yaml_file.load(CONF / "config.yaml")["runtime"]["outputs"])
    rest = []
    for word in words:
        if word.startswith("runtime.outputs="):
            outputs = word.partition("=")[2]
        elif word.startswith("-") or "=" in word:
            raise UserError(f"'{word}' is not an option here; the only setting is runtime.outputs=FOLDER.")
        else:
            rest.append(word)
    return Path(outputs), rest


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
                "conf in it; mhrun init DIR creates a project."
            )
        found = Project(Path(places[0]) / "conf", None, [where])
    for path in sorted(found.conf.glob("*/*.yaml")):
        if (CONF / path.parent.name / path.name).is_file():
            raise UserError(f"{path} has the name of one of mhrun's own configurations; rename it.")
    return found


def _alone(name: str, folder: Path) -> None:
    """Refuse a module of a project with the name of a library, which would be imported instead."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.origin and not Path(spec.origin).resolve().is_relative_to(folder):
        raise UserError(
            f"{folder / name} has the name of another package ({spec.origin}), which would be taken for it; rename it."
        )
