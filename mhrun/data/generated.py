"""Arrays that are made once and kept in the cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mhrun.paths import cache_dir

T = TypeVar("T", bound=np.generic)


def generated(
    kind: str,
    recipe: Sequence[Any],
    size: int,
    dtype: type[T],
    fill: Callable[[npt.NDArray[T]], object],
) -> npt.NDArray[T]:
    """Return the array (size,) that `fill` writes, memory-mapped; it is made the first time.

    The file appears under its name when it is whole, so that an interrupted or a second process leaves
    no half of one behind. What is written into the array later stays in memory.

    Args:
        kind: the first part of the file's name.
        recipe: all that decides the numbers; JSON values.
        size: how many numbers.
        dtype: of the numbers.
        fill: writes them into the array it is given.
    """
    name = hashlib.blake2b(json.dumps(recipe).encode(), digest_size=8).hexdigest()
    kept = np.dtype(dtype)
    path = cache_dir() / "generated" / f"{kind}-{name}.{kept.kind}{8 * kept.itemsize}"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        os.close(handle)
        try:
            fill(np.memmap(partial, dtype, "w+", shape=(size,)))
            os.replace(partial, path)
        finally:
            Path(partial).unlink(missing_ok=True)
    return np.memmap(path, dtype, "c", shape=(size,))
