"""The defaults list of a configuration file, as Hydra reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Default(NamedTuple):
    """An entry of the defaults of a file."""

    key: str  # group with package, ``/method@methods.mint``; empty for a file of the same folder
    choice: str
    is_override: bool

    @property
    def group(self) -> str:
        """The folder of conf/, ``method``; empty for a file of the same folder."""
        return self.key.lstrip("/").partition("@")[0]

    @property
    def package(self) -> str:
        """Where its settings go, ``methods.mint``; empty if the entry has none."""
        return self.key.partition("@")[2]


def defaults_of(settings: Mapping[str, Any]) -> Iterator[Default]:
    """Yield the defaults of a file that choose a name."""
    entries = settings.get("defaults")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, str) and entry != "_self_":
            yield Default("", entry, False)
        elif isinstance(entry, dict):
            for key, value in entry.items():
                if isinstance(value, str):
                    plain = str(key).removeprefix("override ")
                    yield Default(plain.removeprefix("optional "), value, plain != key)
