"""Are the results of a method still what was written?

At its end a method notes the SHA-256 of its trace, and that of the note itself. They are compared when a run is found
again, when a report is made of it, and when a trace is opened: a bit that flipped on the disk is no draw.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_KNOWN: dict[Path, tuple[tuple[int, ...], str]] = {}  # digests that this process has computed
_ITSELF = "checksum"  # of a note, over all else that it says
_FILES = "files"  # of a note: name -> digest


def sealed(note: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """Return a note with the digests of files (name -> digest), and its own."""
    whole = {**note, _FILES: dict(files)}
    return {**whole, _ITSELF: _of_note(whole)}


def genuine(note: Mapping[str, Any]) -> bool:
    """Say whether a note is as it was written; one of a version that knew no checksums is taken at its word."""
    return _ITSELF not in note or note[_ITSELF] == _of_note(note)


def changed(folder: Path, note: Mapping[str, Any]) -> str | None:
    """Return in a few words which of the files of a note is not as it was written, or None.

    Raises:
        OSError: a file cannot be read.
    """
    files = note.get(_FILES)
    for name, digest in files.items() if isinstance(files, Mapping) else ():
        path = folder / name
        if not path.is_file():
            return f"{name} is gone"
        if file_digest(path) != digest:
            return f"{name} is damaged: its SHA-256 is not the one noted when it was written"
    return None


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file; that of a file that has not changed since is remembered by this process.

    Raises:
        OSError: it cannot be read.
    """
    there = path.stat()
    state = (there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns)
    place = path.absolute()
    if place not in _KNOWN or _KNOWN[place][0] != state:
        with open(path, "rb") as stream:
            _KNOWN[place] = state, hashlib.file_digest(stream, "sha256").hexdigest()
    return _KNOWN[place][1]


def _of_note(note: Mapping[str, Any]) -> str:
    told = {key: value for key, value in note.items() if key != _ITSELF}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
