"""The writing of a trace, block by block."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from mhrun import __version__
from mhrun.array_types import Array
from mhrun.errors import UserError
from mhrun.models.axes import Axis
from mhrun.models.parameters import Parameters
from mhrun.store.files import explain, remove
from mhrun.store.netcdf import LABELS, THIN, THIN_STATS, TRACE, WARMUP, Shape
from mhrun.store.netcdf_file import Group, NetcdfFile

_KINDS = ("posterior", "sample_stats")
_LONGEST_ATTRIBUTE = 32_000  # characters; HDF5 has 64 KiB for all of an object
_COPIED = 1 << 22  # numbers that are copied at once
_CHUNK = 1 << 17  # numbers in an HDF5 chunk, about a megabyte
_REJECTED = 0.1  # share of rejections from which theta repeats often enough to be worth compressing


class PartialTrace:
    """A trace in the making: blocks are appended in order, and `finish` puts it in its place, whole or not at all.

    Args:
        folder: the method's folder.
        shape: dimensions of the trace.
        info: field name -> dtype of the per-step statistics.

    Raises:
        UserError: the folder cannot be written.
    """

    def __init__(self, folder: Path, shape: Shape, info: Mapping[str, str]) -> None:
        self.blocks = 0  # that it has
        self._target, self._path = folder / TRACE, folder / (TRACE + ".partial")
        self._shape, self._info = shape, info
        self._done = dict.fromkeys(_KINDS, 0)
        self._monitored: dict[str, list[Array]] = {}
        self._spans: dict[str, list[tuple[str, int, int]]] = {}
        for kind in _KINDS:
            burn_in, end = (
                len(shape.kept(1, steps)) if kind == "posterior" else steps // shape.stats_thin
                for steps in (shape.warmup, shape.total)
            )
            spans = (("warmup_", 0, burn_in), ("", burn_in, end))
            self._spans[kind] = [span for span in spans if span[1] < span[2]]
        remove(self._path)  # from a killed run, or a link, which HDF5 would follow
        try:
            self._file = NetcdfFile(self._path)
        except OSError as error:
            raise explain(error, self._target) from error

    def append(self, block: Mapping[str, Array] | None) -> None:
        """Append the next block; None stands for a damaged one.

        Raises:
            UserError: the block is damaged, or the disk is full.
        """
        if block is None:
            raise UserError("A block of the trace is damaged; run the same command again to recompute it.")
        try:
            if not self.blocks:
                accepted = block["draw/accepted"]
                self._begin(not accepted.size or float(accepted.mean()) < 1 - _REJECTED)
            self._write(block)
        except OSError as error:
            raise explain(error, self._target) from error
        for key, values in block.items():
            if key.startswith("metrics/"):
                self._monitored.setdefault(key.removeprefix("metrics/"), []).append(values)
        self.blocks += 1

    def append_trace(self, path: Path) -> None:
        """Append the first block, whose draws are the trace of a run with fewer steps.

        Raises:
            UserError: the trace is damaged, or the disk is full.
        """
        try:
            with h5py.File(path, "r") as shorter:
                draws = [shorter[name] for name in ("warmup_posterior", "posterior") if name in shorter]
                columns = [v for group in draws for v in group.values() if v.ndim > 1]
                self._begin(any(column.compression for column in columns))
                for kind, spans in self._spans.items():
                    for prefix, _, _ in spans:
                        if prefix + kind in shorter:
                            group = self._file.groups[prefix + kind]
                            self._done[kind] += _copy(shorter[prefix + kind], group)
                for name, values in shorter.get("monitor", {}).items():
                    if name not in ("chain", "monitor_run"):
                        self._monitored[name] = [np.ascontiguousarray(values[()].T)]
        except OSError as error:
            raise explain(error, self._target) from error
        self.blocks += 1

    def _begin(self, repeats: bool) -> None:
        """Create the groups; `repeats`: whether theta repeats often, after rejections."""
        for kind, spans in self._spans.items():
            for prefix, low, high in spans:
                _group(self._file, prefix, kind, self._shape, self._info, high - low, repeats)

    def finish(self, attributes: Mapping[str, Any]) -> None:
        """Put the trace in its place, with attributes.

        Raises:
            UserError: the disk is full, or the folder cannot be written.
        """
        try:
            if self._monitored:
                monitored = {name: np.concatenate(parts) for name, parts in self._monitored.items()}
                _write_monitor(self._file, self._shape, monitored)
            self._file.set_attributes(
                {"created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "inference_library": "mhrun"}
                | {"inference_library_version": __version__}
                | {WARMUP: self._shape.warmup, THIN_STATS: self._shape.stats_thin}
                | ({THIN: self._shape.thin} if isinstance(self._shape.thin, int) else {})
                | dict(attributes)
            )
            self._file.finish()
            with open(self._path, "rb+") as written:
                os.fsync(written.fileno())
            os.replace(self._path, self._target)
        except OSError as error:
            raise explain(error, self._target) from error

    def abandon(self) -> None:
        """Remove it, unless it is finished."""
        try:
            self._file.close()
        finally:
            self._path.unlink(missing_ok=True)

    def _write(self, block: Mapping[str, Array]) -> None:
        shape, info = self._shape, self._info
        counts = {"posterior": block["draw/theta"].shape[1], "sample_stats": len(block["draw/wall_s"])}
        for kind, count in counts.items():
            at = self._done[kind]
            for prefix, low, high in self._spans[kind]:
                a, b = max(at, low), min(at + count, high)
                if a >= b:
                    continue
                file_rows, block_rows = slice(a - low, b - low), slice(a - at, b - at)
                variables = self._file.groups[prefix + kind].variables
                if kind == "posterior":
                    for name, values in _written(block["draw/theta"][:, block_rows], shape.layout).items():
                        variables[name][:, file_rows] = values
                    if "step" in variables:
                        variables["step"][file_rows] = shape.kept(1, shape.total)[at:][block_rows] + 1
                    continue
                variables["wall_s"][file_rows] = block["draw/wall_s"][block_rows]
                for name in info:
                    values = np.broadcast_to(block[f"draw/{name}"], (shape.chains, count))[:, block_rows]
                    variables[name][:, file_rows] = values.astype("int8") if info[name] == "bool" else values
            self._done[kind] += count


def _copy(source: h5py.Group, group: Group) -> int:
    """Copy the rows of all variables to the beginning of a longer group, and return how many there are."""
    rows = len(source["draw"])
    for name, variable in group.variables.items():
        if name in group.dimensions:
            continue
        before = source[name]
        axis = (slice(None),) * (before.ndim > 1)  # wall_s and step have draws only
        width = max(1, before.size // max(1, rows))
        at_once = max(1, _COPIED // width)
        for low in range(0, rows, at_once):
            part = (*axis, slice(low, min(rows, low + at_once)))
            variable[part] = before[part]
    return rows


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
    file: NetcdfFile, prefix: str, kind: str, shape: Shape, info: Mapping[str, str], draws: int, repeats: bool
) -> None:
    group = file.add_group(prefix + kind)
    for name, size in (("chain", shape.chains), ("draw", draws)):
        group.add_dimension(name, np.arange(size, dtype=np.int64))
    if kind == "posterior":
        if shape.layout is None:
            group.add_dimension("parameter", np.asarray(shape.parameters, dtype=object))
            _keep_order(group, {"parameter": shape.parameters})
            _variable(group, "theta", "float64", ("chain", "draw", "parameter"), compress=repeats)
        else:
            group.set_attributes({"parameters": " ".join(shape.layout.shapes)})
            all_axes = (axis for axes in shape.layout.dimensions.values() for axis in axes)
            _keep_order(group, {axis.name: axis.labels for axis in all_axes if axis.labels is not None})
            for name, axes in shape.layout.dimensions.items():
                for axis, size in zip(axes, shape.layout.shapes[name], strict=True):
                    _dimension(group, axis, size)
                names = tuple(axis.name for axis in axes)
                _variable(group, name, "float64", ("chain", "draw", *names), compress=repeats)
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


def _keep_order(group: Group, labels: Mapping[str, Sequence[Any]]) -> None:
    """Store the labels of dimensions as text too: `sel` and `reindex` change the order of coordinates."""
    kept: dict[str, list[Any]] = {}
    # The shortest lists first: if all labels are too long, the longest list is left out.
    for name, values in sorted(labels.items(), key=lambda item: len(item[1])):
        if len(json.dumps(kept | {name: list(values)})) <= _LONGEST_ATTRIBUTE:
            kept[name] = list(values)
    if kept:
        group.set_attributes({LABELS: json.dumps(kept)})


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
    width = int(np.prod([size for d, size in sizes if d != "draw"], initial=1))
    chunks = tuple(min(size, max(1, _CHUNK // width)) if d == "draw" else size for d, size in sizes)
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
