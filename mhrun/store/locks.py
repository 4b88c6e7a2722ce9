"""Locks on folders that processes write to. The operating system releases them when their holder dies."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from mhrun.errors import UserError
from mhrun.store.files import explain, read_json, write_text

_MOMENT = 0.2  # seconds


@contextmanager
def held(folder: Path, what: str, waiting: Callable[[str], None]) -> Iterator[None]:
    """Lock a folder for this process. If another process holds it, report that through `waiting`, and wait.

    Args:
        folder: which exists.
        what: is computed there, as in "This run is being computed already".
        waiting: called with a line on who holds it.

    Raises:
        UserError: the folder cannot be written.
    """
    lock, owner = filelock.FileLock(folder / ".lock"), folder / ".owner"
    try:
        acquire(lock, timeout=0)
    except filelock.Timeout:
        holder = read_json(owner)
        if holder is None:  # it has just taken the lock, and writes its record
            time.sleep(_MOMENT)
            holder = read_json(owner) or {}
        who = " (process {pid} on {host}, since {since})".format(**holder) if len(holder) == 3 else ""
        waiting(f"This {what} is being computed already{who}. Waiting for it; Ctrl-C to stop waiting.")
        acquire(lock)
    record = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    try:
        with suppress(UserError):  # only read by people who wait
            write_text(owner, json.dumps(record))
        yield
    finally:
        with suppress(OSError):
            owner.unlink(missing_ok=True)
        lock.release()


def acquire(lock: filelock.BaseFileLock, timeout: float = -1) -> None:
    """Acquire a lock.

    Raises:
        UserError: the folder cannot be written, or its file system has no locks.
        filelock.Timeout: another process holds the lock.
    """
    path = Path(lock.lock_file)
    try:
        if path.is_symlink():  # older versions of filelock truncate its destination
            path.unlink(missing_ok=True)
        lock.acquire(timeout=timeout)
    except filelock.Timeout:  # an OSError too
        raise
    except OSError as error:
        raise explain(error, path) from error
    except NotImplementedError as error:  # of older versions of filelock
        raise explain(OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)), path) from error
