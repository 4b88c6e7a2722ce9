"""Are the results of a method still what was written?

At its end a method notes the SHA-256 of its trace, and that of the note itself. They are compared when a run is found
again, when a report is made of it, and when a trace is opened: a bit that flipped on the disk is no draw. A summary
has the SHA-256 of its own content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mhrun.store.files import plain, read_json, write_json

_KNOWN: dict[Path, tuple[tuple[int, ...], str]] = {}  # digests that this process has computed
_ITSELF = "checksum"  # of a note, over all else that it says
_FILES = "files"  # of a note: name -> digest
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")  # beside the note, never elsewhere


def sealed(note: Mapping[str, Any], files: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a note with its own digest and, if given, those of files (name -> digest)."""
    whole = {**note} if files is None else {**note, _FILES: dict(files)}
    return {**whole, _ITSELF: _of_note(whole)}


def genuine(note: Mapping[str, Any]) -> bool:
    """Return whether a note has its digest and is as it was written."""
    return note.get(_ITSELF) == _of_note(note)


def write_sealed(path: Path, note: Mapping[str, Any]) -> None:
    """Write a JSON file with its own digest, whole or not at all.

    Raises:
        UserError: the place cannot be written.
    """
    content: dict[str, Any] = plain(dict(note))
    content.pop(_ITSELF, None)
    write_json(path, sealed(content))


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return what `write_sealed` wrote, without the digest; None if it is not there, not whole, or was changed.

    A file without a digest is returned as it is: earlier states of version 2 wrote summaries without one.

    Raises:
        UserError: it is there and cannot be read.
    """
    found = read_json(path)
    if found is None or (_ITSELF in found and not genuine(found)):
        return None
    return {key: value for key, value in found.items() if key != _ITSELF}


def changed(folder: Path, note: Mapping[str, Any]) -> str | None:
    """Return in a few words which of the files of a note is not as it was written, or None.

    Raises:
        OSError: a file cannot be read.
    """
    files = note.get(_FILES)
    if not isinstance(files, Mapping) or not files:
        return "its note names no file"
    for name, digest in files.items():
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            return f"its note names a file elsewhere: {str(name)[:80]!r}"
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
    content = {key: value for key, value in note.items() if key != _ITSELF}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
