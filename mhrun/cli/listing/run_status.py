"""Helpers of lists: the width of a line, and the status of a run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from typing import NamedTuple

import filelock

from mhrun.errors import UserError
from mhrun.report.claims.verdicts import JUDGED, count
from mhrun.store.folder import RunFolder

NO_LIMIT = 100_000  # width of output that is not a terminal


def columns() -> int:
    """Return the maximal width of a line: the terminal's, or no limit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else NO_LIMIT


class RunStatus(NamedTuple):
    """The status of a run."""

    scale: str
    status: str
    when: str  # its end, or its start
    claims: tuple[int, int]  # reproduced, of those judged
    seconds: float | None  # of the steps of its methods
    error: str  # why it failed; empty if that is not known

    @property
    def verdicts(self) -> str:
        """The number of reproduced claims in words; empty if none is judged."""
        return f"{self.claims[0]} of {self.claims[1]} claims reproduced" if self.claims[1] else ""


def status_of(folder: RunFolder) -> RunStatus:
    """Return the status of a run."""
    try:
        summary = folder.summary() or {}
        status = str(summary.get("status", "damaged" if folder.has_damaged_summary() else "begun"))
    except UserError:  # without permission to read it
        summary, status = {}, "unreadable"
    if status == "running" and not _is_locked(folder):
        status = "interrupted"
    moment = str(summary.get("finished") or summary.get("started") or "")[:16].replace("T", " ")
    # Unlike reports, which also count claims that were not run at the paper's scale.
    counts = count((claim["verdict"] for claim in summary.get("claims", [])), among=JUDGED)
    error = str(summary.get("error") or "") if status == "failed" else ""
    return RunStatus(
        str(summary.get("scale", "?")), status, moment, counts, _seconds(summary.get("methods")), error
    )


def _seconds(methods: object) -> float | None:
    """Return the seconds of the steps of all methods of a summary, which may be damaged; None if none has any."""
    summaries = methods.values() if isinstance(methods, Mapping) else ()
    found = [summary.get("wall_s") for summary in summaries if isinstance(summary, Mapping)]
    seconds = [float(value) for value in found if isinstance(value, int | float)]
    return sum(seconds) if seconds else None


def _is_locked(folder: RunFolder) -> bool:
    """Return whether a process has locked the folder; the system releases the lock of a process that dies."""
    lock = folder.path / ".lock"
    if not lock.exists():
        return False
    try:
        with filelock.FileLock(lock).acquire(timeout=0):
            return False
    except (filelock.Timeout, OSError):  # unknown without permission to lock
        return True
