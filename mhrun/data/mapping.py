"""Memory-mapped files."""

from __future__ import annotations

import errno
import mmap
import sys
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from mhrun.errors import UserError

# Without it Linux reserves memory for each page of a writable map, and refuses one larger than memory. No supported
# version of Python names this flag in mmap.
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0

# Keyed by the address of their first number.
_MAPS: WeakValueDictionary[int, npt.NDArray[Any]] = WeakValueDictionary()

_END = 1 << 12  # numbers that identify a file


def writable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a writable array, which torch needs: a new map of the file, or a copy.

    Writing to it never changes the file.

    Raises:
        UserError: the system refuses a map of this size.
    """
    base: Any = array.base
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.base if isinstance(base, np.ndarray) else None
    if not (isinstance(array, np.memmap) and array.filename and base and array.flags.c_contiguous):
        return np.array(array)
    if array.mode not in ("r", "r+"):  # changes of a copy-on-write map exist only in memory
        return np.array(array)
    # A part of a map has the offset of the whole map; only the addresses show where it begins.
    map_start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    offset = map_start + array.ctypes.data - np.frombuffer(base, np.uint8).ctypes.data
    try:
        mapped = _mapped(array, offset)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENOMEM:  # a copy would need as much address space
            raise UserError(
                f"{array.filename} cannot be mapped: the system gives no address space of {array.nbytes:,} bytes "
                "(limits of ulimit -v, or vm.overcommit_memory = 2)."
            ) from error
        return np.array(array)  # the file is gone, or shorter now
    again, original = (np.asarray(a).reshape(-1) for a in (mapped, array))
    ends = (slice(None, _END), slice(-_END, None))  # the name may belong to another file now
    same = all(again[end].tobytes() == original[end].tobytes() for end in ends)
    return mapped if same else np.array(array)


def _mapped(array: Any, offset: int) -> npt.NDArray[Any]:
    if sys.platform == "win32":
        return np.memmap(array.filename, array.dtype, "c", offset, array.shape)
    with open(array.filename, "rb") as file:
        pages = mmap.mmap(
            file.fileno(),
            offset + array.nbytes,
            flags=mmap.MAP_PRIVATE | _NO_RESERVE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
        )
    # Rows of minibatches are scattered: read-ahead around each would read thirty times as much.
    if hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)
    mapped: npt.NDArray[Any] = np.ndarray(array.shape, array.dtype, pages, offset)
    _MAPS[mapped.ctypes.data] = mapped
    return mapped


def soon(where: int, start: int, stop: int) -> None:
    """Read ahead bytes start..stop of a map that begins at an address, for a pass over the data."""
    array = _MAPS.get(where)
    if array is None or not hasattr(mmap, "MADV_WILLNEED"):
        return
    pages: Any = array.base
    first = where - np.frombuffer(pages, np.uint8).ctypes.data + start
    aligned = first - first % mmap.PAGESIZE
    pages.madvise(mmap.MADV_WILLNEED, aligned, first - aligned + stop - start)
