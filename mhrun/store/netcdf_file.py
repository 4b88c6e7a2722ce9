"""Writes NetCDF4 files with h5py alone, in a fifth of the time that h5netcdf takes.

A NetCDF4 file is an HDF5 file with conventions: a dimension is a dimension scale (here always one with values, a
coordinate), a variable is attached to the scales of its dimensions, and both have the ids of their dimensions as
attributes. See the NetCDF-4 format specification of Unidata, "Interoperability with HDF5". h5netcdf looks all of this
up in the file again for each variable; here it is remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from mhrun import __version__
from mhrun.array_types import Array


class Group:
    """A group of a file that is being written.

    Args:
        place: the group in HDF5.
        ids: of the dimensions of the whole file, by the path of each.
    """

    def __init__(self, place: h5py.Group, ids: dict[str, int]) -> None:
        self._place, self._ids = place, ids
        self._scales: dict[str, h5py.Dataset] = {}
        self.dimensions: dict[str, int] = {}
        """The size of each dimension."""
        self.variables: dict[str, h5py.Dataset] = {}
        """All variables and coordinates."""

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Write attributes of the group; numbers become arrays (1,), as NetCDF has them."""
        for name, value in attributes.items():
            text = np.asarray(value).dtype.kind in "SUO"
            self._place.attrs[name] = value if text else np.atleast_1d(value)

    def add_dimension(self, name: str, values: Array) -> None:
        """Create a dimension with its coordinate: `values` (size,), numbers or an object array of str."""
        dtype = h5py.string_dtype() if values.dtype == object else values.dtype
        scale = self._place.create_dataset(name, data=values, dtype=dtype, track_order=True)
        number = self._ids[scale.name] = len(self._ids)
        scale.attrs["_Netcdf4Dimid"] = np.int32(number)
        scale.make_scale(name)
        scale.attrs["_Netcdf4Coordinates"] = np.array([number], np.int32)
        self._scales[name] = self.variables[name] = scale
        self.dimensions[name] = len(values)

    def add_variable(
        self,
        name: str,
        dimensions: tuple[str, ...],
        dtype: npt.DTypeLike | None = None,
        *,
        data: Array | None = None,
        **storage: Any,
    ) -> h5py.Dataset:
        """Create and return a variable over dimensions of this group, with `data` or to be filled.

        `storage`: chunks and filters, as `h5py.Group.create_dataset` takes them.
        """
        scales = [self._scales[dimension] for dimension in dimensions]
        shape = tuple(self.dimensions[dimension] for dimension in dimensions)
        variable = self._place.create_dataset(name, shape, dtype, data=data, track_order=True, **storage)
        for axis, scale in enumerate(scales):
            variable.dims[axis].attach_scale(scale)
        numbers = np.array([self._ids[scale.name] for scale in scales], np.int32)
        variable.attrs["_Netcdf4Coordinates"] = numbers
        variable.attrs["_Netcdf4Dimid"] = numbers[0]
        self.variables[name] = variable
        return variable


class NetcdfFile(Group):
    """A new NetCDF4 file; closed at the end of a ``with`` block.

    Args:
        path: of the file, which must not exist.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self._file = h5py.File(path, "x", track_order=True)
        super().__init__(self._file, {})
        self.groups: dict[str, Group] = {}

    def __enter__(self) -> NetcdfFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.close()

    def finish(self) -> None:
        """Record which software wrote the file, and close it."""
        provenance = f"version=2,mhrun={__version__},hdf5={h5py.version.hdf5_version},h5py={h5py.__version__}"
        self._file.attrs["_NCProperties"] = np.array(provenance, h5py.string_dtype("ascii", len(provenance)))
        self._file.close()

    def close(self) -> None:
        """Close the file, if it is open, as it is."""
        self._file.close()

    def add_group(self, name: str) -> Group:
        """Create and return a group."""
        group = self.groups[name] = Group(self._file.create_group(name, track_order=True), self._ids)
        return group
