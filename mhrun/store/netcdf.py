"""Traces as NetCDF4 in the InferenceData schema, which xarray and ArviZ open as they are.

Groups are ``posterior`` and ``sample_stats`` (chain, draw), and the same for the burn-in with the prefix ``warmup_``.
The posterior holds theta (chain, draw, parameter) or, for a model with named parameters, each parameter in the user's
coordinates (chain, draw, ...), in the order of the attribute ``parameters``. Other dimensions are NAME_dim_0, ... or
the parameter's own `dims`, with their labels as coordinates. For wide models statistics may be kept more often than
theta; the two groups then have different draws. Group ``monitor`` (chain, monitor_run) has the metrics computed during
the run, with the ``step`` of each row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mhrun import __version__
from mhrun.errors import UserError
from mhrun.models.axes import Axis
from mhrun.models.parameters import Parameters, flat_names
from mhrun.store.files import explain, remove
from mhrun.store.netcdf_file import Group, NetcdfFile
from mhrun.types import INFO_DEFAULTS

if TYPE_CHECKING:
    import xarray as xr

Array = npt.NDArray[Any]

TRACE = "trace.nc"
COLLECTED = "collected"  # in a summary: the steps that a schedule collects
_CHUNK = 1 << 17  # numbers in an HDF5 chunk, about a megabyte


class Shape(NamedTuple):
    """Dimensions of a trace."""

    chains: int
    parameters: Sequence[str]
    warmup: int  # steps of burn-in
    steps: int  # steps after it
    thin: int | tuple[int, ...] | None  # theta is kept at every thin-th step, at these steps, or never
    # (with a list of steps, the trace records the step of each draw)
    thin_stats: int | None = None  # statistics are kept at every thin_stats-th step; None: as theta
    layout: Parameters | None = None  # the named parameters that theta is written as; None: as theta

    @property
    def stats_thin(self) -> int:
        """The steps between two kept statistics."""
        if self.thin_stats is not None:
            return self.thin_stats
        return self.thin if isinstance(self.thin, int) else 1

    def kept(self, first_step: int, steps: int) -> Array:
        """Return which of the steps from `first_step` on keep their theta, counted from 0."""
        if self.thin is None:
            return np.empty(0, np.int64)
        if isinstance(self.thin, int):
            return np.arange(-first_step % self.thin, steps, self.thin)
        places = np.asarray(self.thin, np.int64) - first_step
        return places[(places >= 0) & (places < steps)]

    @property
    def total(self) -> int:
        """Number of all steps."""
        return self.warmup + self.steps


def open_trace(folder: Path, *, cache: bool = True) -> xr.DataTree:
    """Open the trace of a method's folder; arrays are read lazily, and kept in memory if `cache`."""
    import xarray as xr

    from mhrun.store.reading import TraceEngine

    return xr.open_datatree(folder / TRACE, engine=TraceEngine, cache=cache)


def flat_draws(posterior: Any) -> Array:
    """Return the draws (C, S, P) of a group ``posterior``: theta, or the numbers of all named parameters in order."""
    if "theta" in posterior and "parameters" not in posterior.attrs:
        found: Array = posterior["theta"].to_numpy()
        return found
    parts = [posterior[name].to_numpy() for name in posterior.attrs["parameters"].split()]
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=-1)


def parameter_names(posterior: Any) -> list[str]:
    """Return the names of the P numbers of a draw, as those of the model, from a group ``posterior``."""
    if "theta" in posterior and "parameters" not in posterior.attrs:
        return [str(name) for name in posterior["parameter"].to_numpy()]
    found: list[str] = []
    for name in posterior.attrs["parameters"].split():
        array = posterior[name]
        axes = [Axis(str(dim), tuple(array[dim].to_numpy().tolist())) for dim in array.dims[2:]]
        found += flat_names(name, array.shape[2:], tuple(axes))
    return found


def write_trace(
    folder: Path,
    shape: Shape,
    info: Mapping[str, str],
    attributes: Mapping[str, Any],
    blocks: Iterable[dict[str, Array] | None],
    *,
    repeats: bool = True,
) -> None:
    """Write ``trace.nc`` whole or not at all from blocks in order, one of them in memory at a time.

    `repeats`: whether theta repeats often enough to be worth compressing.

    Raises:
        UserError: a block is damaged, the disk is full or the folder cannot be written.
    """
    target = folder / TRACE
    partial = folder / (TRACE + ".partial")
    try:
        remove(partial)  # from a killed run, or a link, which HDF5 would follow
        with NetcdfFile(partial) as file:
            file.set_attributes(
                {"created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "inference_library": "mhrun"}
                | {"inference_library_version": __version__}
                | dict(attributes)
            )
            _fill(file, shape, info, blocks, repeats)
        with open(partial, "rb+") as written:
            os.fsync(written.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise explain(error, target) from error
    finally:
        partial.unlink(missing_ok=True)


def _fill(
    file: NetcdfFile,
    shape: Shape,
    info: Mapping[str, str],
    blocks: Iterable[dict[str, Array] | None],
    repeats: bool,
) -> None:
    kinds = ("posterior", "sample_stats")
    spans: dict[str, list[tuple[str, int, int]]] = {}
    for kind in kinds:
        burn_in, kept = (
            len(shape.kept(1, steps)) if kind == "posterior" else steps // shape.stats_thin
            for steps in (shape.warmup, shape.total)
        )
        spans[kind] = [s for s in (("warmup_", 0, burn_in), ("", burn_in, kept)) if s[1] < s[2]]
        for prefix, low, high in spans[kind]:
            _group(file, prefix, kind, shape, info, high - low, repeats)
    done = dict.fromkeys(kinds, 0)
    monitored: dict[str, list[Array]] = {}
    for block in blocks:
        if block is None:
            raise UserError("A block of the trace is damaged; run the same command again to recompute it.")
        for key, values in block.items():
            if key.startswith("metrics/"):
                monitored.setdefault(key.removeprefix("metrics/"), []).append(values)
        counts = {"posterior": block["draw/theta"].shape[1], "sample_stats": len(block["draw/wall_s"])}
        for kind, count in counts.items():
            at = done[kind]
            for prefix, low, high in spans[kind]:
                a, b = max(at, low), min(at + count, high)
                if a >= b:
                    continue
                there, here = slice(a - low, b - low), slice(a - at, b - at)
                variables = file.groups[prefix + kind].variables
                if kind == "posterior":
                    for name, values in _written(block["draw/theta"][:, here], shape.layout).items():
                        variables[name][:, there] = values
                    if "step" in variables:
                        variables["step"][there] = shape.kept(1, shape.total)[at:][here] + 1
                    continue
                variables["wall_s"][there] = block["draw/wall_s"][here]
                for name in info:
                    there_was = block.get(f"draw/{name}", np.asarray(INFO_DEFAULTS.get(name)))  # younger
                    values = np.broadcast_to(there_was, (shape.chains, count))[:, here]
                    variables[name][:, there] = values.astype("int8") if info[name] == "bool" else values
            done[kind] += count
    if monitored:
        _write_monitor(file, shape, {name: np.concatenate(parts) for name, parts in monitored.items()})


def _write_monitor(file: NetcdfFile, shape: Shape, monitored: Mapping[str, Array]) -> None:
    """Write the metrics of the monitor: (runs,), or (runs, C) as (chain, monitor_run)."""
    group = file.add_group("monitor")
    runs = len(monitored["step"])
    for name, size in (("chain", shape.chains), ("monitor_run", runs)):
        group.add_dimension(name, np.arange(size, dtype=np.int64))
    for name, values in monitored.items():
        if values.ndim == 1:
            group.add_variable(name, ("monitor_run",), data=values)
        else:
            group.add_variable(name, ("chain", "monitor_run"), data=np.ascontiguousarray(values.T))


def _group(
    file: NetcdfFile,
    prefix: str,
    kind: str,
    shape: Shape,
    info: Mapping[str, str],
    draws: int,
    repeats: bool,
) -> None:
    group = file.add_group(prefix + kind)
    for name, size in (("chain", shape.chains), ("draw", draws)):
        group.add_dimension(name, np.arange(size, dtype=np.int64))
    if kind == "posterior":
        if shape.layout is None:
            group.add_dimension("parameter", np.asarray(shape.parameters, dtype=object))
            _variable(group, "theta", "float64", ("chain", "draw", "parameter"), compress=repeats)
        else:
            group.set_attributes({"parameters": " ".join(shape.layout.shapes)})
            for name, axes in shape.layout.dimensions.items():
                for axis, size in zip(axes, shape.layout.shapes[name], strict=True):
                    _dimension(group, axis, size)
                own = tuple(axis.name for axis in axes)
                _variable(group, name, "float64", ("chain", "draw", *own), compress=repeats)
        if isinstance(shape.thin, tuple):
            group.add_variable("step", ("draw",), "int64")
            for name in ["theta"] if shape.layout is None else shape.layout.shapes:
                # ArviZ takes everything that is not a coordinate for a quantity
                group.variables[name].attrs["coordinates"] = "step"
        return
    for name, dtype in info.items():
        _variable(group, name, dtype, ("chain", "draw"))
    _variable(group, "wall_s", "float64", ("draw",))


def _dimension(group: Group, axis: Axis, size: int) -> None:
    """Create a dimension with its coordinate, unless another parameter has."""
    if axis.name in group.dimensions:
        return
    if axis.labels is None:
        values = np.arange(size, dtype=np.int64)
    else:
        values = np.asarray(axis.labels, dtype=object if isinstance(axis.labels[0], str) else None)
    group.add_dimension(axis.name, values)


def _written(theta: Array, layout: Parameters | None) -> dict[str, Array]:
    """Return the variables of a posterior from theta (C, S, D)."""
    if layout is None:
        return {"theta": theta}
    values = layout.values(torch.from_numpy(np.ascontiguousarray(theta)))
    return {name: value.numpy() for name, value in values.items()}


def _compression(dtype: str) -> dict[str, Any]:
    # Measured: compressing pays for theta, which repeats after a rejection (a third of the size), and for counts, which
    # nearly vanish. Log-ratios are noise and do not compress.
    if dtype == "float32":
        return {}
    return {"compression": "gzip", "compression_opts": 1, "shuffle": "int" in dtype}


def _variable(
    group: Group, name: str, dtype: str, dimensions: tuple[str, ...], *, compress: bool = True
) -> None:
    sizes = [(d, group.dimensions[d]) for d in dimensions]
    beside = int(np.prod([size for d, size in sizes if d != "draw"], initial=1))
    chunks = tuple(min(size, max(1, _CHUNK // beside)) if d == "draw" else size for d, size in sizes)
    variable = group.add_variable(
        name,
        dimensions,
        "int8" if dtype == "bool" else dtype,
        chunks=chunks,
        fletcher32=True,  # HDF5 checks every chunk it reads: damage is an error, not a number
        **(_compression(dtype) if compress else {}),
    )
    if dtype == "bool":
        variable.attrs["dtype"] = "bool"  # how xarray writes and reads booleans
