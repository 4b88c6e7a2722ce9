"""Arrays that are computed once and kept in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mhrun.errors import UserError
from mhrun.paths import cache_dir

T = TypeVar("T", bound=np.generic)


def generated(
    kind: str, recipe: Sequence[Any], size: int, dtype: type[T], fill: Callable[[npt.NDArray[T]], object]
) -> npt.NDArray[T]:
    """Return the array (size,) that `fill` writes, memory-mapped; it is computed on first use.

    The file gets its name only when it is complete and on the disk, so that an interruption, a second process or a
    power cut never leaves part of one. A file of another size is computed again. Later writes to the array stay in
    memory.

    Args:
        kind: the first part of the file's name.
        recipe: everything that determines the numbers; JSON values.
        size: number of elements.
        dtype: of the numbers.
        fill: writes them into the array it is given.

    Raises:
        UserError: the cache folder cannot be written or read, or its disk is full.
    """
    name = hashlib.blake2b(json.dumps(recipe).encode(), digest_size=8).hexdigest()
    stored_type = np.dtype(dtype)
    path = cache_dir() / "generated" / f"{kind}-{name}.{stored_type.kind}{8 * stored_type.itemsize}"
    try:
        if not path.is_file() or path.stat().st_size != size * stored_type.itemsize:
            _make(path, stored_type, size, fill)
        return np.memmap(path, dtype, "c", shape=(size,))
    except OSError as error:
        raise UserError(
            f"'{path.parent}' cannot be written or read ({error.strerror}); free some space, or choose another folder "
            "with MHRUN_CACHE_DIR."
        ) from error


def _make(path: Path, dtype: np.dtype[T], size: int, fill: Callable[[npt.NDArray[T]], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = _partial(path)
    try:
        # A full disk is an error here; when writing to a map it would kill the process.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, size * dtype.itemsize)
        else:
            os.truncate(handle, size * dtype.itemsize)
        array: np.memmap[Any, np.dtype[T]] = np.memmap(partial, dtype, "r+", shape=(size,))
        fill(array)
        array.flush()
        os.fsync(handle)
        os.replace(partial, path)
    finally:
        os.close(handle)
        partial.unlink(missing_ok=True)


def _partial(path: Path) -> tuple[int, Path]:
    """Return a new file beside a path, open for reading and writing, with the permissions that a file has there."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.partial")
    return os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), partial


def kept(kind: str, name: str, state: str, make: Callable[[], dict[str, npt.NDArray[Any]]]) -> dict[str, Any]:
    """Return the named arrays that `make` computes, from the cache folder if they are there.

    Files are written whole or not at all. A file that is damaged, or of another `state` of the code, is computed again.
    If the folder cannot be written, the arrays are computed each time.

    Args:
        kind: the folder.
        name: the file's name, which depends on everything that determines the numbers.
        state: of the code that computes them.
        make: computes them.
    """
    path = cache_dir() / kind / f"{name}.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {key: file[key] for key in file.files}
        if str(stored.pop("state")) == state:
            return stored
    # A damaged archive can raise nearly anything; computing again repairs it.
    except Exception:
        pass
    arrays = make()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = _partial(path)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, state=np.array(state), **arrays)  # type: ignore[arg-type]
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    return arrays
