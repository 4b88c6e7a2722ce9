"""Folders of experiments and of runs, for commands that need no composed configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from mhrun import yaml_file
from mhrun.errors import UserError
from mhrun.names import is_name
from mhrun.paths import CONF, expanded


def experiments(folders: Sequence[Path] = ()) -> dict[str, Path]:
    """Return all experiments, name -> file; files with invalid names are left out."""
    files = (p for place in [CONF, *folders] for p in sorted((place / "experiment").glob("*.yaml")))
    return {path.stem: path for path in files if is_name(path.stem)}


def endless_defaults(overrides: Sequence[str], folders: Sequence[Path]) -> str:
    """Return a message that names the file whose defaults include itself, for an endless composition."""
    name = next(
        (override.partition("=")[2] for override in overrides if override.startswith("experiment=")), ""
    )
    path = experiments(folders).get(name)
    circle = None if path is None else _circle(path, path.parent.parent, [])
    if circle is None:
        return "these settings are too deep: groups, lists or defaults in one another."
    return f"'{circle[0]}', line {circle[1]}: its defaults include {circle[2]}, which includes it again; remove one."


def _circle(path: Path, root: Path, above: list[Path]) -> tuple[Path, int, str] | None:
    """Return file, line and entry of the first default that includes a file above it, or None."""
    for line, entry in _defaults(path, root):
        place = root / f"{entry}.yaml"
        if place in [*above, path]:
            return path, line, entry
        if place.is_file() and (circle := _circle(place, root, [*above, path])) is not None:
            return circle
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
            folder = path.parent.relative_to(root).as_posix()
            yield (
                item.start_mark.line + 1,
                entry.lstrip("/") if entry.startswith("/") else f"{folder}/{entry}",
            )


def outputs_of(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the folder of runs, and the other arguments.

    Raises:
        UserError: an option or a setting that these commands do not have.
    """
    outputs, rest = folder_and_names("runtime.outputs", arguments)
    default = yaml_file.load(CONF / "config.yaml")["runtime"]["outputs"]
    return expanded(str(default if outputs is None else outputs)), rest


def folder_and_names(key: str, arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of the only setting of a command, a folder, or None, and the names that it is given.

    Raises:
        UserError: an option or another setting.
    """
    folder, names = None, []
    for argument in arguments:
        if argument.startswith(f"{key}="):
            folder = argument.partition("=")[2]
        elif argument.startswith("-") or "=" in argument:
            raise UserError(f"{argument!r} is not an option here; the only setting is {key}=FOLDER.")
        else:
            names.append(argument)
    return folder, names
