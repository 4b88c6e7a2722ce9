"""Files that are whole or not there."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from mhrun.errors import UserError

if sys.platform != "win32":
    import fcntl

_MOST_JSON = 1 << 28  # bytes of a JSON file: a summary has some numbers for each chain


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write `path` so that a reader, or a restart after a kill, sees all of it or nothing.

    Processes that write it at once do so one after the other.

    Raises:
        UserError: the disk is full or the place cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with _alone(partial) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":  # which replaces no file that is open
                os.replace(partial, path)
        if sys.platform == "win32":
            os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):  # of a place that cannot be written at all
            partial.unlink(missing_ok=True)
        raise explain(error, path) from error


@contextmanager
def _alone(partial: Path) -> Iterator[IO[bytes]]:
    """Open a file to write it from its beginning, when nobody else does any more."""
    while True:
        with open(partial, "wb", opener=_as_it_is) as file:
            if sys.platform != "win32":
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            if not _leads_to(partial, file):  # who had it has put it into its place
                continue
            file.truncate(0)
            yield file
            return


def open_log(path: Path) -> IO[str]:
    """Open a log to add lines at its end; a link in its place is removed, not followed.

    Raises:
        OSError: it cannot be opened.
    """
    return open(path, "a", errors="backslashreplace", opener=_as_it_is)


def _as_it_is(path: str, flags: int) -> int:
    """Open a file without emptying it; a link in its place is removed, as what it leads to is somebody else's."""
    flags = flags & ~os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        os.unlink(path)
        return os.open(path, flags, 0o666)


def _leads_to(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


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


def unreadable(error: OSError, path: Path) -> UserError:
    """Return why a file of a run that is there cannot be read, in words for people."""
    return UserError(
        f"'{path}' cannot be read: {error.strerror or error}; see to its permissions, or remove it."
    )


def remove(path: Path) -> None:
    """Remove a file or a folder with all that is in it, if it is there; a link is removed, not what it leads to.

    Raises:
        UserError: it cannot be removed.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:  # another process was sooner
        return
    except OSError as error:
        raise explain(error, path) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all; what UTF-8 cannot have, a surrogate alone, is written out."""
    write_whole(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all; numbers that are not finite become null."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, or None when it is not there, not whole, or not an object.

    Raises:
        UserError: it is there and cannot be read, or is larger than a run writes.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for a writer
            raise UserError(f"'{path}' cannot be read: it is not a file; remove it.")
        with open(path, "rb") as file:
            raw = file.read(_MOST_JSON + 1)
        if len(raw) > _MOST_JSON:
            raise UserError(
                f"'{path}' has more than {_MOST_JSON >> 20} MB, more than a run writes; remove it."
            )
        value = json.loads(raw.decode())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    except OSError as error:
        raise unreadable(error, path) from error
    return value if isinstance(value, dict) else None


def plain(value: Any) -> Any:
    """Return a value as JSON has it: arrays as lists, numbers that are not finite as None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    elif hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value
