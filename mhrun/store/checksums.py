"""Checksums of results.

A finished method records the SHA-256 of its trace and of the record itself. Both are verified when a run is found
again, when a report is made, and when a trace is opened. A summary has the SHA-256 of its content.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mhrun.store.files import plain, read_json, write_json

_KNOWN: dict[Path, tuple[tuple[int, ...], str]] = {}  # digests computed by this process
_ITSELF = "checksum"  # of a record, over its other content
_FILES = "files"  # of a record: name -> digest
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")  # in the folder of the record, never elsewhere


def sealed(note: Mapping[str, Any], files: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a record with its own digest and, if given, those of files (name -> digest)."""
    record = {**note} if files is None else {**note, _FILES: dict(files)}
    return {**record, _ITSELF: _of_note(record)}


def genuine(note: Mapping[str, Any]) -> bool:
    """Return whether a record has a digest that matches its content."""
    return note.get(_ITSELF) == _of_note(note)


def write_sealed(path: Path, note: Mapping[str, Any]) -> None:
    """Write a JSON file with a digest of its content, whole or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    content: dict[str, Any] = plain(dict(note))
    content.pop(_ITSELF, None)
    write_json(path, sealed(content))


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return what `write_sealed` wrote, without the digest; None if it is missing, incomplete or changed.

    A file without a digest counts as changed.

    Raises:
        UserError: it exists and cannot be read.
    """
    record = read_json(path)
    if record is None or not genuine(record):
        return None
    return {key: value for key, value in record.items() if key != _ITSELF}


def changed(folder: Path, note: Mapping[str, Any]) -> str | None:
    """Return briefly which of a record's files has changed, or None.

    Raises:
        OSError: a file cannot be read.
    """
    files = note.get(_FILES)
    if not isinstance(files, Mapping) or not files:
        return "its record names no file"
    for name, digest in files.items():
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            return f"its record names a file in another folder: {str(name)[:80]!r}"
        path = folder / name
        if not path.is_file():
            return f"{name} is gone"
        if file_digest(path) != digest:
            return f"{name} is damaged: its SHA-256 is not the recorded one"
    return None


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, cached in this process as long as the file is unchanged.

    Raises:
        OSError: it cannot be read.
    """
    status = path.stat()
    state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    key = path.absolute()
    if key not in _KNOWN or _KNOWN[key][0] != state:
        with open(path, "rb") as stream:
            _KNOWN[key] = state, hashlib.file_digest(stream, "sha256").hexdigest()
    return _KNOWN[key][1]


def _of_note(note: Mapping[str, Any]) -> str:
    content = {key: value for key, value in note.items() if key != _ITSELF}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
