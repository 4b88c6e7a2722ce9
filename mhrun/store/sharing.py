"""Computes methods that several runs share, as jobs of a sweep do, only once.

A method that is done has its digest (`mhrun.store.identity.method_digest`) in its ``done.json``. A run that needs a
method of this digest links its files, or copies them where the disk has no hard links. Files are replaced and never
changed, so that no run can alter those of another; a damaged trace is found by its checksum in each of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from mhrun.errors import UserError
from mhrun.store.blocks import DONE, LAST, damage, done
from mhrun.store.files import remove
from mhrun.store.folder import RunFolder
from mhrun.store.netcdf import TRACE

DIGEST = "method_digest"
"""Key of ``done.json``."""
EXECUTOR = "executor.json"
PILOT = "pilot.npz"
"""What a pilot found, see `mhrun.engine.pilot`."""
REFERENCE = "reference.npz"
"""The point about which a surrogate expands, see `mhrun.store.reference`."""
STEPS = "steps"
"""Key of ``done.json``: the steps after burn-in."""
ANY_STEPS_DIGEST = "any_steps_digest"
"""Key of ``done.json``: the digest of a method without its number of steps."""


class Finished(NamedTuple):
    """Digests and steps in the record of a finished method, ``done.json``."""

    digest: str | None = None
    any_steps_digest: str | None = None
    steps: int = 0  # after burn-in; 0 if they are unknown


def finished_elsewhere(folder: RunFolder, name: str, digest: str) -> Path | None:
    """Return where another run of the same experiment has this method, done and undamaged; None if none has.

    Args:
        folder: the run that needs it.
        name: the method's name.
        digest: its digest.
    """
    for source in others(folder, name):
        with suppress(UserError):  # one that cannot be read is of no use
            if finished(source).digest == digest and damage(source) is None:
                return source
    return None


def finished(folder: Path) -> Finished:
    """Return digests and steps in the record of a finished method; an empty `Finished` if it is unfinished or damaged.

    A job of a sweep looks at the records of all earlier ones, so that each is read once in a process, unless it
    changes.

    Raises:
        UserError: the record is there and cannot be read.
    """
    try:
        status = (folder / DONE).stat()
    except OSError:
        return Finished()
    return _finished(folder, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=100_000)
def _finished(folder: Path, version: tuple[int, ...]) -> Finished:
    """Return what is in a record; its version is its inode, size and time of writing."""
    summary: dict[str, Any] = done(folder) or {}
    return Finished(summary.get(DIGEST), summary.get(ANY_STEPS_DIGEST), steps_of(summary))


def steps_of(summary: dict[str, Any] | None) -> int:
    """Return the steps after burn-in of a finished method; 0 if they are unknown."""
    steps = (summary or {}).get(STEPS)
    return steps if isinstance(steps, int) and not isinstance(steps, bool) and steps > 0 else 0


def others(folder: RunFolder, name: str) -> Iterator[Path]:
    """Yield the folders in which other runs of the same experiment have finished a method of this name."""
    target = folder.method(name)
    for record in sorted(folder.path.parent.glob(f"*/methods/{name}/{DONE}")):
        source = record.parent
        if source != target and not any(
            path.is_symlink() for path in (source, source.parent, source.parent.parent)
        ):
            yield source


def take(folder: RunFolder, name: str, digest: str) -> str | None:
    """Put a method that another run has done into a run that has not begun it, and return that run's name.

    None if there is no such run, if the method has begun here, or if the files cannot be had. The files appear all at
    once; a kill leaves a hidden folder that the next attempt removes.
    """
    target = folder.method(name)
    if has_begun(target):
        return None
    source = finished_elsewhere(folder, name, digest)
    if source is None:
        return None
    partial = target.with_name(f".{name}.partial")
    try:
        remove(partial)
        partial.mkdir(parents=True)
        for part in (TRACE, EXECUTOR, DONE):
            link(source / part, partial / part)
        for part in (PILOT, LAST, REFERENCE):
            if (source / part).is_file():
                link(source / part, partial / part)
        if damage(partial) is not None:  # replaced, or gone, meanwhile
            return None
        remove(target)  # it may have the record of an executor
        partial.rename(target)
    except (OSError, UserError):
        return None  # it is computed, and what is wrong with the disk is reported then
    finally:
        with suppress(OSError, UserError):
            remove(partial)
    return source.parent.parent.name


def link(source: Path, target: Path) -> None:
    """Link a file, or copy it where the disk has no hard links.

    Raises:
        OSError: it cannot be read or written.
    """
    try:
        os.link(source, target)
    except OSError:  # no hard links here
        with open(source, "rb") as original, open(target, "xb") as duplicate:
            shutil.copyfileobj(original, duplicate, 1 << 20)
            duplicate.flush()
            os.fsync(duplicate.fileno())


def has_begun(folder: Path) -> bool:
    """Return whether the folder of a method has results."""
    return any((folder / part).exists() for part in (TRACE, DONE, "blocks"))


@contextmanager
def claimed(folder: RunFolder, digest: str) -> Iterator[bool]:
    """Claim a method for this process while it computes it; yields whether no other process has it.

    Only where the experiment has been swept: jobs that run beside each other share methods. The operating system gives
    the claim back when its holder dies. Where files cannot be locked there are no claims, and a method may be computed
    twice.
    """
    claims, lock = folder.path.parent / ".claims", None
    try:
        if (folder.path.parent / "sweeps").is_dir() and not claims.is_symlink():
            claims.mkdir(exist_ok=True)
            lock = filelock.FileLock(claims / digest)
            lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    except (OSError, NotImplementedError):
        lock = None
    try:
        yield True
    finally:
        if lock is not None:
            lock.release()
