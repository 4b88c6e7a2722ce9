"""Keys of an experiment's settings at any depth, read from its files without Hydra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mhrun.cli.listing.outline import settings_and_comments
from mhrun.defaults_list import defaults_of
from mhrun.paths import CONF

KeyTree = dict[str, "KeyTree | None"]
"""Key -> the keys below it; None for a value."""

_DEEPEST = 20  # files that include each other


def key_tree(experiment: str, choices: Mapping[str, str], folders: Sequence[Path]) -> KeyTree:
    """Return the keys of an experiment.

    Args:
        experiment: its name.
        choices: parts chosen on the command line, ``data`` or ``rule@methods.mint.kernel.rule`` -> name.
        folders: the user's configurations.

    Raises:
        UserError: a file of the user's cannot be read.
    """
    chosen = {_place(key, ""): name for key, name in choices.items()}
    reader = _Reader(dict(chosen), folders)
    reader.read("", "config", "", 0)
    reader.read("experiment", experiment, "", 0)
    for (group, package), name in chosen.items():  # also parts that the command line adds
        reader.read(group, name, package, 0)
    reader.tree.pop("hydra", None)
    return reader.tree


def _place(key: str, package: str) -> tuple[str, str]:
    """Return group and package of an entry of the defaults, in a file with a package."""
    group, at, own = key.lstrip("/").partition("@")
    own = own if at else group.replace("/", ".")
    return group, ".".join(part for part in (package, own) if part and part != "_global_")


class _Reader:
    """Reads files and the defaults that they name; choices of a file above count before those below."""

    def __init__(self, choices: dict[tuple[str, str], str], folders: Sequence[Path]) -> None:
        self.choices = choices  # (group, package) -> name
        self.tree: KeyTree = {}
        self._places = [*reversed(folders), CONF]

    def read(self, group: str, name: str, package: str, depth: int) -> None:
        """Add the keys of a file at a package, and those of its defaults."""
        path = next((p for place in self._places if (p := place / group / f"{name}.yaml").is_file()), None)
        if path is None or depth > _DEEPEST:
            return
        settings, _ = settings_and_comments(path)
        entries = list(defaults_of(settings))
        for key, choice, is_override in entries:
            if is_override:
                self.choices.setdefault(_place(key, package), choice)
        for key, choice, is_override in entries:
            if not key:
                self.read(str(Path(group, choice).parent), Path(choice).name, package, depth + 1)
            elif not is_override:
                group_below, package_below = _place(key, package)
                chosen = self.choices.get((group_below, package_below), choice)
                self.read(group_below, chosen, package_below, depth + 1)
        own = {key: value for key, value in settings.items() if key != "defaults"}
        _add(_below(self.tree, package), own)


def _below(tree: KeyTree, package: str) -> KeyTree:
    """Return the keys of a package, which are added where there are none."""
    for part in filter(None, package.split(".")):
        tree[part] = tree = tree.get(part) or {}
    return tree


def _add(tree: KeyTree, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            _add(_below(tree, str(key)), value)
        else:
            tree.setdefault(str(key), None)
