"""``mhrun init``: creates a small project, ready to run."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from mhrun.errors import UserError
from mhrun.paths import STARTER


def start_project(words: Sequence[str]) -> int:
    """Write a small project into a new folder, and print how to run it.

    Raises:
        UserError: no folder is named, or it is not empty, or it cannot be created.
    """
    if len(words) != 1 or "=" in words[0]:
        raise UserError("mhrun init needs one folder: mhrun init DIR.")
    folder = Path(words[0])
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"'{folder}' is not empty; choose another folder.")
    try:
        shutil.copytree(STARTER, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise UserError(f"'{folder}' cannot be created: {error.strerror or error}.") from error
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        print(f"wrote   {path}")
    print(f"run it  mhrun --project {folder} experiment=robust")
    return 0
