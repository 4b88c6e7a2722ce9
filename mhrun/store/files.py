"""Files that are whole or not there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from mhrun.errors import UserError


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write `path` so that a reader, or a restart after a kill, sees all of it or nothing.

    Raises:
        UserError: the disk is full or the place cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise explain(error, path) from error


def explain(error: OSError, path: Path) -> UserError:
    """Return an operating system's error in words for people."""
    if error.errno == errno.ENOSPC:
        return UserError(
            f"The disk that holds '{path.parent}' is full; free some space and run the same command."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(
            f"'{path.parent}' cannot be written; choose another folder with runtime.outputs=FOLDER."
        )
    return UserError(f"'{path}' cannot be written: {error.strerror or error}.")


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_whole(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all; numbers that are not finite become null."""
    write_text(path, json.dumps(_plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, or None when it is not there or not whole.

    Raises:
        UserError: it is there and cannot be read.
    """
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from error
    return value if isinstance(value, dict) else None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    elif hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
