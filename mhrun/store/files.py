"""Atomic writing of files."""

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

# Of file systems on a network; the last two are one number on Linux, and two on macOS.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)
_MOST_JSON = 1 << 28  # largest JSON file, in bytes: a summary has some numbers per chain


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write `path` so that a reader, or a restart after a kill, sees the whole file or none.

    Concurrent writers take turns.

    Raises:
        UserError: the disk is full or the place cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with _alone(partial) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":  # Windows does not replace an open file
                os.replace(partial, path)
        if sys.platform == "win32":
            os.replace(partial, path)
    except OSError as error:
        if sys.platform == "win32":  # which does not remove an open file
            _discard(partial)
        raise explain(error, path) from error


@contextmanager
def _alone(partial: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing from its beginning, once no other process writes it; remove it if writing fails."""
    while True:
        with open(partial, "wb", opener=_as_it_is) as file:
            if sys.platform != "win32":
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
            if not _leads_to(partial, file):  # the other process has moved it into place
                continue
            try:
                file.truncate(0)
                yield file
            except OSError:
                if sys.platform != "win32":
                    _discard(partial)  # under the lock: later it may be another's
                raise
            return


def _discard(partial: Path) -> None:
    with suppress(OSError):  # the folder cannot be written
        partial.unlink(missing_ok=True)


def open_log(path: Path) -> IO[str]:
    """Open a log for appending; a link in its place is removed, not followed.

    Raises:
        OSError: it cannot be opened.
    """
    return open(path, "a", encoding="utf-8", errors="backslashreplace", opener=_as_it_is)


def _as_it_is(path: str, flags: int) -> int:
    """Open a file without truncating it; a link in its place is removed, not followed."""
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
    """Return the message for an error of the operating system."""
    if error.errno == errno.ENOSPC:
        return UserError(
            f"The disk that holds '{path.parent}' is full; free some space and run the same command."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UserError(
            f"'{path.parent}' cannot be written; choose another folder with runtime.outputs=FOLDER."
        )
    if error.errno in _NO_LOCKS:
        return UserError(
            f"Files in '{path.parent}' cannot be locked ({error.strerror}); choose a folder on another file system "
            "with runtime.outputs=FOLDER."
        )
    return UserError(f"'{path}' cannot be written: {error.strerror or error}.")


def unreadable(error: OSError, path: Path) -> UserError:
    """Return the message for a file of a run that exists and cannot be read."""
    if error.errno == errno.ENAMETOOLONG:
        return UserError(
            f"'{path}' has a name that is too long; choose a shorter one with runtime.outputs=FOLDER."
        )
    remedy = "check its permissions, or remove it"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        remedy = "raise the limit of open files (ulimit -n)"
    return UserError(f"'{path}' cannot be read: {error.strerror or error}; {remedy}.")


def remove(path: Path) -> None:
    """Remove a file or a folder with its contents, if it exists; a link is removed, not its destination.

    Raises:
        UserError: it cannot be removed.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:  # another process removed it first
        return
    except OSError as error:
        raise explain(error, path) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all; a lone surrogate, which UTF-8 cannot encode, is escaped."""
    write_whole(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file whole or not at all; numbers that are not finite become null."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, or None if it is missing, incomplete or not an object.

    Raises:
        UserError: it exists and cannot be read, or is larger than any file of a run.
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
    """Return a value for JSON: arrays as lists, non-finite numbers as None."""
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
