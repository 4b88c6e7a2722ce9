"""The user's arrays: an .npz file in memory, or .npy files mapped from the disk."""

from __future__ import annotations

import io
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mhrun.array_types import Array
from mhrun.data.dataset import Dataset, as_is, known
from mhrun.data.lazy import LazyData
from mhrun.data.mapping import writable
from mhrun.data.memory import check_memory
from mhrun.errors import Refusal, UserError, nearest, reason
from mhrun.paths import located

_NPY = b"\x93NUMPY"
_HEAD = 1 << 16  # largest header of an array, in bytes
# What a damaged file can raise, from the file, an archive's directory or an array's header.
_DAMAGE = (
    *(ValueError, OSError, EOFError, KeyError, RuntimeError, OverflowError, MemoryError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
_BLOCK = 1 << 24  # numbers that are checked at once
_SEARCHED = 1 << 28  # bytes of a map up to which it is searched for non-finite numbers


class Npz(LazyData):
    """The arrays of an .npz file, each with one row per datum.

    Args:
        file: searched in the user's folders, then in the current folder.
        fields: names of the arrays in the model: field name -> array's name; None takes all arrays under their names.
        pixels: whether bytes (uint8) are pixels, k for k/255, to models that read images; see `mhrun.Dataset`.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(self, file: str, fields: Mapping[str, str] | None = None, pixels: bool = False) -> None:
        self.file = file
        self.pixels = pixels
        self.fields = None if fields is None else dict(fields)

    def _dataset(self) -> Dataset:
        path = located(self.file)
        try:
            with open(path, "rb") as stream:
                if stream.read(len(_NPY)) == _NPY:
                    raise UserError(f"{path.name} is a single array, not an .npz; choose data=memmap.")
            with zipfile.ZipFile(path) as archive:
                self._check(archive, path)
            with np.load(path, allow_pickle=False) as arrays:
                raw = {field: arrays[name] for field, name in self._chosen(arrays.files, path).items()}
        except _DAMAGE as error:
            raise _unreadable(path, error) from error
        fields = {}
        for field, array in raw.items():
            fields[field] = known(array, f"{path.name}: '{field}'")
            _search(field, fields[field], path)
        return Dataset.of(fields, pixels=self.pixels)

    def _chosen(self, names: Sequence[str], path: Path) -> dict[str, str]:
        """Return field name -> array's name."""
        chosen = self.fields or {name: name for name in names}
        for name in chosen.values():
            if name not in names:
                raise UserError(
                    f"{path.name} has no array '{name}'.{nearest(name, names)} There are: {', '.join(names)}."
                )
        return chosen

    def _check(self, archive: zipfile.ZipFile, path: Path) -> None:
        """Refuse arrays that are invalid, of different lengths, or too large, from their headers: they may inflate."""
        members = {name.removesuffix(".npy"): name for name in archive.namelist()}
        lengths: dict[str, int] = {}
        need = 0
        for field, name in self._chosen(list(members), path).items():
            info = archive.getinfo(members[name])
            with archive.open(info) as stream:
                declared = _declared(stream.read(_HEAD), f"{path.name}: '{field}'")
            _examine(field, declared, path)
            if declared.stop > info.file_size:
                raise UserError(f"{path.name}: '{field}' is cut short; save it again.")
            lengths[field] = declared.shape[0]
            need += declared.nbytes * (1 if as_is(declared.dtype) else 3)
        if len(set(lengths.values())) > 1:
            raise UserError(f"{path.name}: the fields of a data set must have one length, not {lengths}.")
        check_memory(
            need,
            path.name,
            "save each array by np.save and choose data=memmap, which leaves them on the disk",
        )


class Memmap(LazyData):
    """Arrays in .npy files, which may be larger than memory: rows are read from the disk when a minibatch needs them.

    Passes over all data read in blocks. A map of up to 256 MB is searched for non-finite numbers; in a larger one they
    show as diverging steps.

    Args:
        file: one array, the field ``x``; searched in the user's folders, then in the current folder.
        files: several, field name -> file, each with one row per datum.
        pixels: whether bytes (uint8) are pixels, k for k/255, to models that read images; see `mhrun.Dataset`.

    Raises:
        Refusal: neither or both of `file` and `files` are given.
    """

    def __init__(
        self, file: str | None = None, files: Mapping[str, str] | None = None, pixels: bool = False
    ) -> None:
        if (file is None) == (files is None):
            raise Refusal("memmap needs file=ARRAY.npy, or files with a name for each: files.x=X.npy.")
        self.files = {"x": file} if file is not None else dict(files or {})
        self.pixels = pixels

    def _dataset(self) -> Dataset:
        fields = {}
        for field, file in self.files.items():
            path = located(str(file))
            try:
                with open(path, "rb") as stream:
                    head = stream.read(_HEAD)
                if not head.startswith(_NPY):
                    raise UserError(
                        f"{path.name} cannot be mapped; save each array by np.save as a separate .npy."
                    )
                declared = _declared(head, path.name)
                _examine(field, declared, path)
                if declared.stop > path.stat().st_size:
                    raise UserError(f"{path.name} is cut short; save it again.")
                array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
            except _DAMAGE as error:
                raise _unreadable(path, error) from error
            if not array.flags.c_contiguous:
                raise UserError(
                    f"{path.name} is stored column by column; save it by np.save of np.ascontiguousarray."
                )
            if not as_is(array.dtype):
                raise UserError(
                    f"{path.name} holds {array.dtype}, which would have to be copied; save it as float32."
                )
            if array.nbytes <= _SEARCHED:
                _search(field, array, path)
            fields[field] = writable(array)
        return Dataset.of(fields, pixels=self.pixels)


class _Declared(NamedTuple):
    """The content of an array's header."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int  # of its numbers
    stop: int  # bytes of its header and its numbers


def _declared(head: bytes, what: str) -> _Declared:
    """Return the header of a .npy, from the first bytes of the file.

    Raises:
        UserError: the header is invalid.
    """
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        reader = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[
            version
        ]
        shape, _, dtype = reader(stream)
    except Exception as error:  # NumPy evaluates it as a Python literal, which can raise many errors
        raise UserError(f"{what} is not an array written by np.save; save it again.") from error
    if dtype.hasobject:
        raise UserError(f"{what} holds Python objects, which are never read here; save numbers.")
    if not all(isinstance(k, int) and 0 <= k < 1 << 62 for k in shape):
        raise UserError(f"{what} has the shape {shape}, which is impossible; save it again.")
    nbytes = math.prod(shape) * dtype.itemsize
    return _Declared(shape, dtype, nbytes, stream.tell() + nbytes)


def _examine(field: str, array: _Declared, path: Path) -> None:
    """Refuse an array that is not a field of numbers."""
    if array.dtype.kind not in "biuf" or not array.shape:
        raise UserError(
            f"{path.name}: '{field}' holds {array.dtype} {array.shape}; a field is one number or more per row."
        )


def _search(field: str, array: Array, path: Path) -> None:
    """Refuse an array that holds a non-finite number."""
    if array.dtype.kind != "f":
        return
    rows = max(1, _BLOCK // max(1, int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        bad = ~np.isfinite(array[start : start + rows])
        if bad.any():
            first = start + int(np.argwhere(bad)[0][0])
            raise UserError(
                f"{path.name}: '{field}' is not finite in row {first:,}; correct it or leave the row out."
            )


def _unreadable(path: Path, error: Exception) -> UserError:
    if "pickle" in str(error) or "bject" in str(error):
        return UserError(f"{path.name} holds Python objects, which are never read here; save numbers.")
    return UserError(f"{path.name} cannot be read: {reason(error)}")
