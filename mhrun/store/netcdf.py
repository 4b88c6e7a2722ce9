"""Traces as NetCDF4 in the InferenceData schema, which xarray and ArviZ open as they are.

Groups ``posterior`` (theta: chain, draw, parameter) and ``sample_stats`` (chain, draw), and the same
for the burn-in with the prefix ``warmup_``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import h5netcdf
import h5py
import numpy as np
import numpy.typing as npt

from mhrun import __version__
from mhrun.errors import UserError
from mhrun.store.files import explain

if TYPE_CHECKING:
    import xarray as xr

Array = npt.NDArray[Any]

TRACE = "trace.nc"
_CHUNK = 1 << 17  # numbers in an HDF5 chunk, about a megabyte


class Shape(NamedTuple):
    """What a trace holds."""

    chains: int
    parameters: Sequence[str]
    warmup: int  # steps of burn-in, before the draws proper
    steps: int  # steps after it
    thin: int  # every thin-th step is kept

    @property
    def total(self) -> int:
        """All steps."""
        return self.warmup + self.steps


def open_trace(folder: Path) -> xr.DataTree:
    """Open the trace of a method's folder; arrays are read when they are asked for."""
    import xarray as xr

    return xr.open_datatree(folder / TRACE, engine="h5netcdf")


def write_trace(
    folder: Path,
    shape: Shape,
    info: Mapping[str, str],
    attributes: Mapping[str, Any],
    blocks: Iterable[dict[str, Array] | None],
) -> None:
    """Write ``trace.nc`` whole or not at all from blocks in order, one of them in memory at a time.

    Raises:
        UserError: a block is damaged, the disk is full or the folder cannot be written.
    """
    target = folder / TRACE
    partial = folder / (TRACE + ".partial")
    try:
        with h5netcdf.File(partial, "w") as file:
            file.attrs.update(
                {"created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "inference_library": "mhrun"}
                | {"inference_library_version": __version__}
                | dict(attributes)
            )
            burn_in = shape.warmup // shape.thin
            kept = shape.total // shape.thin
            _fill(file, shape, info, blocks, [("warmup_", 0, burn_in), ("", burn_in, kept)])
        with open(partial, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise explain(error, target) from error
    finally:
        partial.unlink(missing_ok=True)


def _fill(
    file: Any,
    shape: Shape,
    info: Mapping[str, str],
    blocks: Iterable[dict[str, Array] | None],
    spans: list[tuple[str, int, int]],
) -> None:
    spans = [(prefix, low, high) for prefix, low, high in spans if low < high]
    for prefix, low, high in spans:
        _groups(file, prefix, shape, info, high - low)
    at = 0
    for block in blocks:
        if block is None:
            raise UserError("A block of the trace is damaged; run the same command again to have it redone.")
        count = len(block["draw/wall_s"])
        for prefix, low, high in spans:
            a, b = max(at, low), min(at + count, high)
            if a >= b:
                continue
            there, here = slice(a - low, b - low), slice(a - at, b - at)
            stats = file.groups[prefix + "sample_stats"]
            file.groups[prefix + "posterior"].variables["theta"][:, there] = block["draw/theta"][:, here]
            stats.variables["wall_s"][there] = block["draw/wall_s"][here]
            for name in info:
                values = np.broadcast_to(block[f"draw/{name}"], (shape.chains, count))[:, here]
                stats.variables[name][:, there] = values.astype("int8") if info[name] == "bool" else values
        at += count


def _groups(file: Any, prefix: str, shape: Shape, info: Mapping[str, str], draws: int) -> None:
    posterior, stats = (file.create_group(prefix + name) for name in ("posterior", "sample_stats"))
    for group in (posterior, stats):
        for name, size in (("chain", shape.chains), ("draw", draws)):
            group.dimensions[name] = size
            group.create_variable(name, (name,), data=np.arange(size, dtype=np.int64))
    posterior.dimensions["parameter"] = len(shape.parameters)
    labels = posterior.create_variable("parameter", ("parameter",), h5py.string_dtype())
    labels[...] = np.asarray(shape.parameters, dtype=object)
    _variable(posterior, "theta", "float64", ("chain", "draw", "parameter"))
    for name, dtype in info.items():
        _variable(stats, name, dtype, ("chain", "draw"))
    _variable(stats, "wall_s", "float64", ("draw",))


def _compression(dtype: str) -> dict[str, Any]:
    # What pays, measured: theta repeats after a rejection (a third of the size), counts all but vanish;
    # log-ratios are noise, which takes time and gives nothing.
    if dtype == "float32":
        return {}
    return {"compression": "gzip", "compression_opts": 1, "shuffle": "int" in dtype}


def _variable(group: Any, name: str, dtype: str, dimensions: tuple[str, ...]) -> None:
    sizes = {d: len(group.dimensions[d]) for d in dimensions}
    beside = int(np.prod([size for d, size in sizes.items() if d != "draw"], initial=1))
    chunks = tuple(min(size, max(1, _CHUNK // beside)) if d == "draw" else size for d, size in sizes.items())
    variable = group.create_variable(
        name,
        dimensions,
        "int8" if dtype == "bool" else dtype,
        chunks=chunks,
        fletcher32=True,  # HDF5 checks every chunk it reads: damage is an error, not a number
        **_compression(dtype),
    )
    if dtype == "bool":
        variable.attrs["dtype"] = "bool"  # how xarray writes and reads booleans
