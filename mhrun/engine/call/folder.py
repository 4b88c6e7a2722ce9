"""The folder in which a call of `mhrun.sample` keeps its trace: one process writes it, and the same call resumes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mhrun.engine.longer import reason_to_begin_anew
from mhrun.engine.method import Method
from mhrun.errors import UserError
from mhrun.store.blocks import clear
from mhrun.store.files import read_json, remove, write_json
from mhrun.store.fingerprint import fingerprint
from mhrun.store.folder import RunFolder
from mhrun.store.identity import FORMAT, RESULTS_VERSION
from mhrun.store.longer import begin_longer
from mhrun.store.netcdf import TRACE
from mhrun.store.sharing import EXECUTOR, STEPS, steps_of

_NOTE = "call.json"  # what identifies a call, in its folder


def _go_on(folder: Path, method: Method, steps: int) -> None:
    """Make what a folder has of a method with fewer steps the beginning of it.

    Raises:
        UserError: it is not its beginning, or is damaged.
    """
    total = method.shape.warmup + steps
    reason = reason_to_begin_anew(method, steps)
    if reason is None and (folder / TRACE).exists() and not begin_longer(folder, folder, total):
        reason = f"it is damaged, or does not have the state after step {total:,}"
    if reason is not None:
        raise UserError(
            f"'{folder}' holds the trace of this call with {STEPS}={steps}, which cannot go on: {reason}. Choose "
            "another folder."
        )


@contextmanager
def locked(folder: str | Path) -> Iterator[Path]:
    """Make a folder and keep other processes from writing to it.

    Raises:
        UserError: it has no name, or cannot be made.
    """
    if not str(folder):
        raise UserError("folder = '' names no folder; give a path, or None.")
    place = RunFolder(Path(folder))
    try:
        place.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"folder = '{folder}' cannot be made: {error.strerror}; choose another.") from error
    with place.held(lambda line: print(line, file=sys.stderr)):
        yield place.path


def digests_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each setting of a call, by content."""
    return {name: fingerprint(value) for name, value in settings.items()}


def recorded_steps(folder: str | Path) -> int:
    """Return the steps after burn-in of the call that a folder holds; 0 if there is none."""
    return steps_of(read_json(Path(folder) / _NOTE))


def begin_anew(folder: Path) -> None:
    """Remove the trace of a call and how it was computed, but not what its pilot found."""
    for name in (_NOTE, EXECUTOR):
        remove(folder / name)
    clear(folder)


def check_call(folder: Path, digests: Mapping[str, str], method: Method) -> None:
    """Refuse a folder that holds the trace of another call, and name the settings that differ.

    A call that differs in more steps only goes on from what is there.

    Args:
        folder: of the trace.
        digests: of the settings of the call, but for its steps.
        method: of the call.

    Raises:
        UserError: it is the trace of another call, or one that cannot go on.
    """
    note = folder / _NOTE
    version = fingerprint(FORMAT, RESULTS_VERSION)
    recorded = read_json(note)
    record = {"version": version, STEPS: method.shape.steps, "settings": dict(digests)}
    if recorded is None and not any((folder / name).exists() for name in ("blocks", TRACE)):
        write_json(note, record)
        return
    before = (recorded or {}).get("settings")
    if before is None or (recorded or {}).get("version") != version:
        raise UserError(
            f"'{folder}' holds the trace of another call, or of this one by another version of mhrun; choose "
            "another folder."
        )
    differing = [name for name, digest in digests.items() if before.get(name) != digest]
    if (steps := steps_of(recorded)) != method.shape.steps:
        if not differing and 0 < steps < method.shape.steps:
            _go_on(folder, method, steps)
            write_json(note, record)
            return
        differing.append(STEPS)
    if differing:
        by_length = " (a schedule and what is kept may depend on the number of steps)" * (
            STEPS in differing[1:]
        )
        raise UserError(
            f"'{folder}' holds the trace of another call, with other values of: {', '.join(differing)}{by_length}. "
            "Choose another folder."
        )
