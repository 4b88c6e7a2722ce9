"""Arrays of the user's own: an .npz file in memory, or .npy files mapped from the disk."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.data.dataset import Dataset, as_is, known
from mhrun.data.mapping import writable
from mhrun.errors import Refusal, UserError, nearest
from mhrun.paths import located

Array = npt.NDArray[Any]

_BLOCK = 1 << 24  # numbers that are looked through at once
_SEARCHED = 1 << 28  # bytes of a map up to which it is searched for what is no number


class Npz:
    """The arrays of an .npz file, each with one row per datum.

    Args:
        file: looked for in the folders of the user's own, then where we are.
        fields: what the model calls each array: field name -> array's name; None takes all arrays by their own names.

    Raises:
        Refusal: a setting that has no meaning.
    """

    def __init__(self, file: str, fields: Mapping[str, str] | None = None) -> None:
        self.file = file
        self.fields = None if fields is None else dict(fields)

    @property
    def n(self) -> int:
        """How many data there are; the file is read for it."""
        return self._loaded.n

    def load(self) -> Dataset:
        """Return the data set.

        Raises:
            UserError: a file or an array that is not there, or holds no numbers; each in one line.
        """
        return self._loaded

    @cached_property
    def _loaded(self) -> Dataset:
        path = located(self.file)
        try:
            with np.load(path, allow_pickle=False) as archive:
                if not isinstance(archive, np.lib.npyio.NpzFile):
                    raise UserError(f"{path.name} is one array, no .npz; data=memmap reads it.")
                there = archive.files
                chosen = self.fields or {name: name for name in there}
                for name in chosen.values():
                    if name not in there:
                        raise UserError(
                            f"{path.name} has no array '{name}'.{nearest(name, there)} There are: {', '.join(there)}."
                        )
                found = {field: archive[name] for field, name in chosen.items()}
        except (
            *(ValueError, OSError, EOFError, KeyError, RuntimeError),
            *(zipfile.BadZipFile, zlib.error, struct.error),
        ) as error:
            raise _unreadable(path, error) from error
        kept = {}
        for field, array in found.items():
            _look(field, array, path)
            kept[field] = known(array, f"{path.name}: '{field}'")
            _search(field, kept[field], path)
        return Dataset.of(kept)


class Memmap:
    """Arrays in .npy files, larger than memory if need be: rows are read from the disk as minibatches ask for them.

    What goes through all data goes in blocks. A map of up to 256 MB is searched for numbers that are none; of a larger
    one a datum that is none shows as steps that diverge.

    Args:
        file: one array, the field ``x``; looked for in the folders of the user's own, then where we are.
        files: several, field name -> file, each with one row per datum.

    Raises:
        Refusal: neither or both of the two.
    """

    def __init__(self, file: str | None = None, files: Mapping[str, str] | None = None) -> None:
        if (file is None) == (files is None):
            raise Refusal("memmap needs file=ARRAY.npy, or files with a name for each: files.x=X.npy.")
        self.files = {"x": file} if file is not None else dict(files or {})

    @property
    def n(self) -> int:
        """How many data there are, from the files' headers."""
        return self._loaded.n

    def load(self) -> Dataset:
        """Return the data set, nothing of which is in memory.

        Raises:
            UserError: a file that is not there, or holds no numbers; each in one line.
        """
        return self._loaded

    @cached_property
    def _loaded(self) -> Dataset:
        kept = {}
        for field, file in self.files.items():
            path = located(str(file))
            try:
                array = np.load(path, mmap_mode="r", allow_pickle=False)
            except (ValueError, OSError, EOFError) as error:
                raise _unreadable(path, error) from error
            if not isinstance(array, np.memmap):
                raise UserError(
                    f"{path.name} cannot be mapped; save each array by np.save as a .npy of its own."
                )
            if not array.flags.c_contiguous:
                raise UserError(
                    f"{path.name} is stored column by column; save it by np.save of np.ascontiguousarray."
                )
            _look(field, array, path)
            if not as_is(array.dtype):
                raise UserError(
                    f"{path.name} holds {array.dtype}, which would have to be copied; save it as float32."
                )
            if array.nbytes <= _SEARCHED:
                _search(field, array, path)
            kept[field] = writable(array)
        return Dataset.of(kept)


def _look(field: str, array: Array, path: Path) -> None:
    """Refuse an array that is no field of numbers."""
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise UserError(
            f"{path.name}: '{field}' holds {array.dtype} {array.shape}; a field is one number or more per row."
        )


def _search(field: str, array: Array, path: Path) -> None:
    """Refuse an array that holds what is no finite number."""
    if array.dtype.kind != "f":
        return
    rows = max(1, _BLOCK // max(1, int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        bad = ~np.isfinite(array[start : start + rows])
        if bad.any():
            first = start + int(np.argwhere(bad)[0][0])
            raise UserError(
                f"{path.name}: '{field}' is no finite number in row {first:,}; mend it or leave the row out."
            )


def _unreadable(path: Path, error: Exception) -> UserError:
    if "pickle" in str(error) or "bject" in str(error):
        return UserError(f"{path.name} holds Python objects, which are never read here; save numbers.")
    told = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return UserError(f"{path.name} cannot be read: {told}")
