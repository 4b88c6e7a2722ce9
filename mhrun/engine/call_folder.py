"""The folder in which a call of `mhrun.sample` keeps its trace: one process writes it, and the same call resumes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mhrun.errors import UserError
from mhrun.store.files import read_json, write_json
from mhrun.store.folder import RunFolder
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


def check_call(folder: Path, settings: str) -> None:
    """Refuse a folder that holds the trace of another call."""
    note = folder / "call.json"
    recorded = read_json(note)
    if recorded is None and not any((folder / name).exists() for name in ("blocks", TRACE)):
        write_json(note, {"fingerprint": settings})
    elif recorded is None or recorded.get("fingerprint") != settings:
        raise UserError(
            f"'{folder}' holds the trace of another call, or of this one by another version of mhrun; choose "
            "another folder."
        )
