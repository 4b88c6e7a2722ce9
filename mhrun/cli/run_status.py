"""Pieces of the lists: the width of a line, and the status of a run."""

from __future__ import annotations

import shutil
import sys
from datetime import datetime
from typing import NamedTuple

import filelock

from mhrun.store.folder import RunFolder

NO_LIMIT = 100_000  # columns of output that is not a terminal


def columns() -> int:
    """Return how many characters a line may have: those of the terminal, or as many as it takes."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else NO_LIMIT


def cut(text: str, most: int) -> str:
    """Return a text of at most `most` characters, ending in ... where it was longer."""
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."


class Status(NamedTuple):
    """Where a run stands."""

    scale: str
    status: str
    when: str  # it ended, or began
    claims: tuple[int, int]  # reproduced, of those judged
    seconds: float | None  # from its beginning to its end

    @property
    def verdicts(self) -> str:
        """How many claims are reproduced; empty where none is judged."""
        return f"{self.claims[0]} of {self.claims[1]} claims reproduced" if self.claims[1] else ""


def status_of(folder: RunFolder) -> Status:
    """Return where a run stands."""
    summary = folder.summary() or {}
    status = str(summary.get("status", "damaged" if folder.has_damaged_summary() else "begun"))
    if status == "running" and not _held(folder):
        status = "interrupted"
    when = str(summary.get("finished") or summary.get("started") or "")[:16].replace("T", " ")
    given = ("reproduced", "not reproduced")
    judged = [claim["verdict"] for claim in summary.get("claims", []) if claim["verdict"] in given]
    took = _seconds(summary.get("started"), summary.get("finished"))
    return Status(
        str(summary.get("scale", "?")), status, when, (judged.count("reproduced"), len(judged)), took
    )


def _seconds(began: object, ended: object) -> float | None:
    try:
        return (datetime.fromisoformat(str(ended)) - datetime.fromisoformat(str(began))).total_seconds()
    except (ValueError, TypeError):
        return None


def _held(folder: RunFolder) -> bool:
    """Return whether a process has the folder: the system drops the lock of one that dies, however it dies."""
    lock = folder.path / ".lock"
    if not lock.exists():
        return False
    try:
        with filelock.FileLock(lock).acquire(timeout=0):
            return False
    except (filelock.Timeout, OSError):  # where we may not lock, it is unknown
        return True
