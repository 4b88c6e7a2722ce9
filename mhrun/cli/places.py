"""Folders, for the commands that need no composed configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
