"""What the jobs of a sweep leave in its folder: a record of each, its log, and a mark of its worker."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mhrun.cli.crash import crash_of, show_traceback
from mhrun.errors import UserError, reason, writable
from mhrun.store.files import explain, write_json, write_text
from mhrun.store.sweep import FAILED

_OF_A_JOB = re.compile(r"\d{4,}\.(json|log|begun)(\.partial)?|launcher\.log(\.partial)?")


def file_of(place: Path, number: int, kind: Literal["json", "log", "begun"]) -> Path:
    """Return a file of a job in the sweep's folder; it is numbered from 1, as in messages."""
    return place / "jobs" / f"{number + 1:04d}.{kind}"


def launcher_log(place: Path) -> Path:
    """Return the file of what the launcher failed with."""
    return place / "jobs" / "launcher.log"


def clear(place: Path) -> None:
    """Remove the files of jobs that were done before.

    Raises:
        UserError: a file cannot be removed.
    """
    folder = place / "jobs"
    try:
        for path in folder.iterdir():
            if _OF_A_JOB.fullmatch(path.name):
                path.unlink()
    except OSError as error:
        raise explain(error, folder) from error


def record(place: Path, number: int, given: Sequence[str], result: Mapping[str, Any]) -> dict[str, Any]:
    """Write the record of a job, a failed one unless `result` has another status, and return it."""
    whole = {"number": number, "overrides": list(given), "status": FAILED} | dict(result)
    write_json(file_of(place, number, "json"), whole)
    return whole


def failure(error: BaseException, log: Path) -> dict[str, Any]:
    """Return the fields of a record for an exception, after writing its traceback to the job's log."""
    show_traceback(error)
    write_text(log, "".join(traceback.format_exception(error)))
    if isinstance(error, UserError):
        return {"error": writable(reason(error)), "log": str(log)}
    crash = crash_of(error)
    return {"error": writable(crash.line), "bug": not crash.of_user, "log": str(log)}
