"""Opens traces as xarray does, in a fifth of the time.

xarray's own reader of NetCDF4 makes about a thousand calls of HDF5 for a trace of forty variables. This one knows how
`mhrun.store.netcdf` writes: no fill values, scales or times to decode, and a coordinate for every dimension.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
from xarray.backends import BackendArray, BackendEntrypoint
from xarray.core import indexing

_OF_FORMAT = {"CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST"}  # attributes that hold the dimensions


class TraceEngine(BackendEntrypoint):
    """An engine for `xarray.open_datatree` that reads traces; arrays are read when they are needed."""

    def open_datatree(self, filename_or_obj: Any, *, drop_variables: Any = None, **_: Any) -> xr.DataTree:
        """Return the groups of a trace.

        Raises:
            OSError: the file cannot be read, or is not an HDF5 file.
        """
        # Arrays are read whole and once: a cache of chunks for each would only take memory.
        file = h5py.File(Path(filename_or_obj), "r", rdcc_nbytes=0)
        try:
            groups = {f"/{name}": _dataset(group) for name, group in file.items()}
            tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs=_attributes(file)), **groups})
        except BaseException:
            file.close()
            raise
        tree.set_close(_Close(file))
        return tree


class _Close:
    """Closes a file; a copy from a pickle has none to close."""

    def __init__(self, file: h5py.File | None = None) -> None:
        self._file = file

    def __call__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out the open file."""
        return _Close, ()


class _Array(BackendArray):
    """A dataset of HDF5; truth values are stored as integers."""

    def __init__(self, dataset: h5py.Dataset, dtype: np.dtype[Any]) -> None:
        self._dataset = dataset
        self.shape, self.dtype = dataset.shape, dtype

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place, not the open file."""
        return _reopened, (self._dataset.file.filename, self._dataset.name, self.dtype)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        outer = indexing.IndexingSupport.OUTER_1VECTOR
        return indexing.explicit_indexing_adapter(key, self.shape, outer, self._read)

    def _read(self, key: Any) -> Any:
        return np.asarray(self._dataset[key]).astype(self.dtype, copy=False)


def _reopened(file: str, name: str, dtype: np.dtype[Any]) -> _Array:
    return _Array(h5py.File(file, "r")[name], dtype)


def _dataset(group: h5py.Group) -> xr.Dataset:
    """Return a group: its dimension scales are coordinates, and so are the variables that others name."""
    members = dict(group.items())
    scales = {name: member for name, member in members.items() if "CLASS" in member.attrs}
    variables = {name: _scale(name, member) for name, member in scales.items()}
    coordinates = set(scales)
    for name, member in members.items():
        if name in scales:
            continue
        attributes = _attributes(member)
        coordinates |= set(str(attributes.pop("coordinates", "")).split())
        references = [entry[0] for entry in member.attrs["DIMENSION_LIST"]]
        dimensions = [
            h5py.h5r.get_name(reference, group.id).decode().rpartition("/")[2] for reference in references
        ]
        dtype = np.dtype(attributes.pop("dtype", member.dtype))
        variables[name] = xr.Variable(
            dimensions, indexing.LazilyIndexedArray(_Array(member, dtype)), attributes
        )
    return xr.Dataset(variables, attrs=_attributes(group)).set_coords(coordinates & set(variables))


def _scale(name: str, member: h5py.Dataset) -> xr.Variable:
    """Return a coordinate, read now."""
    text = h5py.check_string_dtype(member.dtype) is not None
    values = np.asarray(member.asstr()[...]).astype(np.str_) if text else member[...]
    return xr.Variable((name,), values, _attributes(member))


def _attributes(member: Any) -> dict[str, Any]:
    """Return the attributes of a file, a group or a variable, without those of the file format."""
    names = (name for name in member.attrs if name not in _OF_FORMAT and not name.startswith("_N"))
    attributes = {name: member.attrs[name] for name in names}
    return {k: v[0] if isinstance(v, np.ndarray) and v.shape == (1,) else v for k, v in attributes.items()}
