"""The folder in which a call of `mhrun.sample` keeps its trace: one process writes it, and the same call resumes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mhrun.errors import UserError
from mhrun.store.files import read_json, write_json
from mhrun.store.fingerprint import fingerprint
from mhrun.store.folder import RunFolder
from mhrun.store.identity import FORMAT, RESULTS_VERSION
from mhrun.store.netcdf import TRACE


@contextmanager
def locked(folder: str | Path) -> Iterator[Path]:
    """Make a folder and keep other processes from writing to it."""
    place = RunFolder(Path(folder))
    try:
        place.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"folder = '{folder}' cannot be made: {error.strerror}; choose another.") from error
    with place.held(lambda line: print(line, file=sys.stderr)):
        yield place.path


def check_call(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a folder that holds the trace of another call, and name the settings that differ."""
    note = folder / "call.json"
    version = fingerprint(FORMAT, RESULTS_VERSION)
    digests = {name: fingerprint(value) for name, value in settings.items()}
    recorded = read_json(note)
    if recorded is None and not any((folder / name).exists() for name in ("blocks", TRACE)):
        write_json(note, {"version": version, "settings": digests})
        return
    before = (recorded or {}).get("settings")
    if before is None or (recorded or {}).get("version") != version:
        raise UserError(
            f"'{folder}' holds the trace of another call, or of this one by another version of mhrun; choose "
            "another folder."
        )
    if differing := [name for name, digest in digests.items() if before.get(name) != digest]:
        raise UserError(
            f"'{folder}' holds the trace of another call, with other values of: {', '.join(differing)}. Choose "
            "another folder."
        )
