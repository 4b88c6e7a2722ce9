"""The jobs of a sweep, read from their records in the sweep's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mhrun.store.files import read_json
from mhrun.store.folder import RunFolder

DONE, FAILED = "done", "failed"


@dataclass(frozen=True)
class Job:
    """One job of a sweep: its settings, whether it finished, and the folder of its run."""

    number: int  # from 0
    overrides: list[str]  # the swept settings, as ``key=value``
    status: str
    folder: RunFolder  # of a job that is not done: none that exists
    error: str = ""
    log: str = ""
    is_bug: bool = False  # it ended in an exception that is no UserError

    @property
    def is_done(self) -> bool:
        """Whether the job finished; its run may have been removed since."""
        return self.status == DONE

    @cached_property
    def missing(self) -> str:
        """What is wrong with the run of a finished job; an empty string if nothing is."""
        if not self.is_done:
            return ""
        if not (self.folder.path / "config.yaml").exists() or self.folder.summary() is None:
            return "its run is missing; the same command computes it again"
        return "" if self.folder.is_complete() else "its run is not complete; the same command resumes it"

    @property
    def has_run(self) -> bool:
        """Whether the job finished and its run is there and complete."""
        return self.is_done and not self.missing

    @property
    def swept(self) -> dict[str, Any]:
        """The swept settings by key; texts that are numbers are read as such."""
        return dict(_pair(override) for override in self.overrides)


def jobs_of_sweep(place: Path) -> list[Job]:
    """Return the jobs of the sweep in folder `place`, in order; records of another form are left out."""
    records = [read_json(path) for path in sorted((place / "jobs").glob("*.json"))]
    return [_job(place, record) for record in records if record is not None and _is_job(record)]


def _is_job(record: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has the form of a job's record."""
    overrides = record.get("overrides")
    return (
        isinstance(record.get("number"), int)
        and isinstance(record.get("status"), str)
        and isinstance(overrides, list)
        and all(isinstance(override, str) for override in overrides)
    )


def _job(place: Path, record: Mapping[str, Any]) -> Job:
    return Job(
        record["number"],
        record["overrides"],
        record["status"],
        # Relative to the sweep's folder: the path recorded by the job is relative to its working directory.
        RunFolder(place.parent.parent / str(record.get("digest") or "no run")),
        str(record.get("error") or ""),
        str(record.get("log") or ""),
        bool(record.get("bug")),
    )


def _pair(override: str) -> tuple[str, Any]:
    key, _, text = override.lstrip("+").partition("=")
    try:
        return key, float(text) if not text.lstrip("-").isdigit() else int(text)
    except ValueError:
        return key, text
