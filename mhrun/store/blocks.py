"""Blocks: the results of a method while it runs.

A block is an ``.npz`` with the draws of consecutive steps *and* the state after them, written whole or not at all. At
any moment the blocks on disk hold a run up to some step and the state to resume from; a kill loses at most what came
after the last block. A large state is kept only in the last two blocks. When the method is complete, the blocks become
``trace.nc`` (see `mhrun.store.netcdf`); most of that is done in a thread before.
"""

from __future__ import annotations

import re
import struct
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from mhrun.errors import UserError
from mhrun.exchanges import MADE, REFUSED
from mhrun.store.checksums import changed, file_digest, genuine, sealed
from mhrun.store.files import explain, plain, read_json, remove, unreadable, write_json, write_whole
from mhrun.store.netcdf import TRACE, Shape
from mhrun.store.trace_file import PartialTrace

Array = npt.NDArray[Any]

DONE = "done.json"
_NAME = re.compile(r"\d{1,18}-\d{1,18}\.npz")
_CUMULATIVE = ("n_lik", "n_lik_overhead", "n_grad")
_SUMMED = ("accepted", "batch_size", "diverging")
_AVERAGED = ("log_ratio_var",)  # over the steps where it is finite
_SIZES = ("size_change", "size_change_squared")  # of minibatches that are not all data
SKEW_EDGES = np.geomspace(1e-3, 1.0, 31)  # of the bins that |log_ratio_skew| is counted in
# Bytes of a state above which only the last blocks keep it: that of a network would fill the disk
_LARGE = 1 << 20
_LIGHT = "light"  # suffix of a block without a state
_OURS = ("total/", "draw/", "metrics/")  # prefix of what a block holds besides the state


class Checkpoint(NamedTuple):
    """The last completed step of a method, and named arrays of the engine (state, memory)."""

    step: int
    arrays: dict[str, Array]


class TraceWriter:
    """Collects the records of a method and writes its trace.

    Args:
        folder: the method's folder.
        shape: dimensions of the trace.
        info: field name -> dtype of the per-step statistics.
        n: number of data, for counting the steps that read all of them.

    Raises:
        UserError: the folder cannot be written.
    """

    def __init__(self, folder: Path, shape: Shape, info: Mapping[str, str], n: int) -> None:
        self.folder = folder
        self.n = n
        self.shape = shape
        self.info = dict(info)
        self.wall_s = self.warmup_wall_s = 0.0  # until now, and at the end of burn-in
        self.totals: dict[str, Array] = {name: np.zeros(shape.chains, np.int64) for name in _CUMULATIVE}
        for name in _CUMULATIVE:  # at the end of burn-in
            self.totals[f"warmup_{name}"] = np.zeros(shape.chains)
        # Rates leave out burn-in, in which step sizes are tuned.
        for name in (*_SUMMED, *_AVERAGED, *_SIZES, "all_data", "invalid"):
            self.totals[f"sum_{name}"] = np.zeros(shape.chains)
        self.totals["first_batch_size"] = np.full(shape.chains, np.nan)  # what the changes are from
        for name in _AVERAGED:
            self.totals[f"count_{name}"] = np.zeros(shape.chains)
        self.totals |= {f"sum_{name}": np.zeros(shape.chains) for name in ("skew_squared", "skew_noise")}
        self.totals["count_log_ratio_skew"] = np.zeros(len(SKEW_EDGES) + 1)  # decisions in each bin
        self._lacks_exchanges = False  # of steps after burn-in that are done
        self._pending: list[dict[str, Array]] = []
        self._monitored: list[dict[str, Array]] = []
        self._pending_from = 1
        self._bytes = 0
        self._clock = time.monotonic()
        self._blocks = folder / "blocks"
        self._trace: PartialTrace | None = None
        self._converter: threading.Thread | None = None
        try:
            self._blocks.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain(error, self._blocks) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._abandon_trace()

    def resume(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """Return the checkpoint on disk, or None if there is none.

        A damaged block is dropped with all that follow; their steps are repeated.
        """
        next_step, last = 1, None
        paths = self._sorted()
        for i, path in enumerate(paths):
            first, stop = _span(path)
            content = load_block(path) if first == next_step else None
            if content is None:
                warn(
                    f"{path.name} is damaged or out of place; continuing from step {next_step - 1:,} before it."
                )
                for later in paths[i:]:
                    remove(later)
                break
            next_step, last = stop, content
        if last is not None and _LIGHT in last:
            warn("The last blocks are damaged, and those before them keep no state; starting again.")
            for path in self._sorted():
                remove(path)
            return None
        if last is None:
            return None
        self.totals |= {key[6:]: value for key, value in last.items() if key.startswith("total/")}
        self._lacks_exchanges = next_step - 1 > self.shape.warmup and "sum_exchanges_made" not in self.totals
        self.wall_s, self.warmup_wall_s = float(last["wall"]), float(last.get("warmup_wall", 0.0))
        self._pending_from = next_step
        return Checkpoint(next_step - 1, {key: value for key, value in last.items() if _of_state(key)})

    def _add(self, total: str, values: Array) -> None:
        """Add values (C, K) to a total one by one, so that rounding does not depend on the blocks."""
        carried = np.column_stack((self.totals[total], values.astype(np.float64)))
        self.totals[total] = np.cumsum(carried, axis=1)[:, -1].copy()

    def start_clock(self) -> None:
        """Restart the clock for the next steps."""
        self._clock = time.monotonic()

    def append(self, first_step: int, record: Mapping[str, Array]) -> None:
        """Append the steps from `first_step` on: each field of the info (C, K), and the kept theta (C, draws, D)."""
        count = record["accepted"].shape[1]
        now = time.monotonic()
        wall = self.wall_s + (now - self._clock) * np.arange(1, count + 1) / count
        self.wall_s, self._clock = float(wall[-1]), now
        kept = slice(-first_step % self.shape.stats_thin, None, self.shape.stats_thin)
        proper = slice(max(0, self.shape.warmup + 1 - first_step), None)
        draws: dict[str, Array] = {"theta": record["theta"], "wall_s": wall[kept]}
        burnt_in = (
            self.shape.warmup - first_step if first_step <= self.shape.warmup < first_step + count else None
        )
        if burnt_in is not None:
            self.warmup_wall_s = float(wall[burnt_in])
        for name in self.info:
            values = record[name]
            if name in _CUMULATIVE:
                values = self.totals[name][:, None] + np.cumsum(values, axis=1, dtype=np.int64)
                self.totals[name] = values[:, -1].copy()
                if burnt_in is not None:
                    self.totals[f"warmup_{name}"] = values[:, burnt_in].astype(np.float64)
            if name in _SUMMED:
                self.totals[f"sum_{name}"] += values[:, proper].sum(axis=1, dtype=np.float64)
            if name in _AVERAGED:
                finite = np.isfinite(values[:, proper])
                self._add(f"sum_{name}", np.where(finite, values[:, proper], 0.0))
                self.totals[f"count_{name}"] += finite.sum(axis=1)
            draws[name] = values[:, kept]
        self._sizes(record["batch_size"][:, proper])
        if "valid" in record:
            self.totals["sum_invalid"] += (~record["valid"][:, proper].astype(bool)).sum(axis=1)
        if "exchange" in record and not _constant(record["exchange"]):
            self._exchanges(record["exchange"][:, proper])
        if "log_ratio_skew" in record and not _constant(record["log_ratio_skew"]):
            self._skewness(record["log_ratio_skew"][:, proper], record["batch_size"][:, proper])
        if self.shape.stats_thin > 1:  # a view would keep the thinned-out steps in memory
            draws = {name: values if _constant(values) else values.copy() for name, values in draws.items()}
        self._pending.append(draws)
        self._bytes += sum(a.nbytes for a in draws.values())

    def _sizes(self, size: Array) -> None:
        """Append the minibatch sizes of decisions (C, K), see `mhrun.engine.batch_sizes`."""
        first, on_part = self.totals["first_batch_size"], size != self.n
        if (new := np.isnan(first) & on_part.any(axis=1)).any():
            first[new] = size[new, on_part[new].argmax(axis=1)]
        change = np.where(on_part, size - first[:, None], 0.0)
        self._add("sum_size_change", change)
        self._add("sum_size_change_squared", np.square(change))
        self.totals["sum_all_data"] += (~on_part).sum(axis=1)

    def _exchanges(self, exchange: Array) -> None:
        """Append the outcomes of exchanges (C, K), as in `mhrun.exchanges`.

        A run that an earlier version began has no counts of its first steps, and gets none of the others.
        """
        if self._lacks_exchanges:
            return
        for name, codes in (("exchanges_proposed", (REFUSED, MADE)), ("exchanges_made", (MADE,))):
            before = self.totals.setdefault(f"sum_{name}", np.zeros(self.shape.chains))
            self.totals[f"sum_{name}"] = before + np.isin(exchange, codes).sum(axis=1)

    def _skewness(self, skew: Array, size: Array) -> None:
        """Append the skewness of decisions (C, K): its squares, and those expected by chance, 6 / size^2.

        The size includes the pilot's data, which do not enter the skewness; part of the chance term then remains.
        """
        finite = np.isfinite(skew)
        noise = np.where(finite & (skew != 0), 6.0 / np.maximum(size, 1).astype(np.float64) ** 2, 0.0)
        self._add("sum_skew_squared", np.square(np.where(finite, skew, 0.0), dtype=np.float64))
        self._add("sum_skew_noise", noise)
        bins = np.searchsorted(SKEW_EDGES, np.abs(skew[finite]))
        self.totals["count_log_ratio_skew"] += np.bincount(bins, minlength=len(SKEW_EDGES) + 1)

    def note(self, step: int, metrics: Mapping[str, Array]) -> None:
        """Append a row of a monitor's metrics after `step`, name -> (C,)."""
        counts = {name: self.totals[name].copy() for name in _CUMULATIVE}
        position = {"step": np.asarray(step), "wall_s": np.asarray(self.wall_s)}
        self._monitored.append({**position, **counts, **metrics})

    def pending_bytes(self) -> int:
        """Return the bytes appended since the last block."""
        return self._bytes

    def commit(self, checkpoint: Checkpoint) -> None:
        """Write what was appended since the last block, with the state after it.

        Raises:
            UserError: the disk is full; the run is kept up to the previous block.
        """
        if not self._pending:
            return
        content = dict(checkpoint.arrays) | {f"total/{key}": value for key, value in self.totals.items()}
        for name in self._pending[0]:
            content[f"draw/{name}"] = _joined([draws[name] for draws in self._pending])
        for name in self._monitored[0] if self._monitored else ():
            content[f"metrics/{name}"] = np.stack([row[name] for row in self._monitored])
        content["wall"], content["warmup_wall"] = np.asarray(self.wall_s), np.asarray(self.warmup_wall_s)
        stop = checkpoint.step + 1
        path = self._blocks / f"{self._pending_from:012d}-{stop:012d}.npz"
        write_whole(path, lambda file: np.savez(file, **content))  # type: ignore[arg-type]
        self._pending, self._monitored, self._pending_from, self._bytes = [], [], stop, 0
        if sum(array.nbytes for array in checkpoint.arrays.values()) > _LARGE:
            for older in self._sorted()[:-2][-1:]:
                self._lighten(older)

    def _lighten(self, path: Path) -> None:
        content = load_block(path)
        if content is not None:
            arrays = {key: value for key, value in content.items() if not _of_state(key)} | {_LIGHT: np.True_}
            write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]

    def convert(self) -> None:
        """Begin to write the blocks on disk to the trace, in a thread while the method goes on.

        HDF5 compresses without Python's lock. What fails here is tried again, and reported, by `finish`.
        """
        if self._converter is None or not self._converter.is_alive():
            self._converter = threading.Thread(target=self._convert_quietly, daemon=True, name="mhrun-trace")
            self._converter.start()

    def _convert_quietly(self) -> None:
        with suppress(UserError):
            self._append_blocks()

    def _append_blocks(self) -> PartialTrace:
        """Append the blocks on disk that the trace has not, and return it."""
        trace = self._trace
        if trace is None:
            trace = self._trace = PartialTrace(self.folder, self.shape, self.info)
        try:
            for path in self._sorted()[trace.blocks :]:
                trace.append(load_block(path))
        except BaseException:
            self._trace = None
            trace.abandon()
            raise
        return trace

    def _abandon_trace(self) -> None:
        if self._converter is not None:
            self._converter.join()
        if self._trace is not None:
            self._trace.abandon()

    def finish(self, attributes: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Write ``trace.nc`` from the blocks, record that the method is done, and remove the blocks.

        `attributes` go into the trace, `facts` into the record of completion (see `done`). A kill in between leaves the
        blocks, and the next start calls this again.

        Raises:
            UserError: a block is damaged, the disk is full or the folder cannot be written.
        """
        if self._converter is not None:
            self._converter.join()
        try:
            self._append_blocks().finish(attributes)
        finally:
            self._abandon_trace()
        totals = {key: value.tolist() for key, value in self.totals.items()}
        summary = plain(
            {"totals": totals, "wall_s": self.wall_s, "warmup_wall_s": self.warmup_wall_s, **facts}
        )
        try:
            digest = file_digest(self.folder / TRACE)
        except OSError as error:
            raise explain(error, self.folder / TRACE) from error
        write_json(self.folder / DONE, sealed(summary, {TRACE: digest}))
        remove(self._blocks)

    def _sorted(self) -> list[Path]:
        return _blocks_of(self._blocks)


def done(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a finished method, or None if it is unfinished or its summary was changed."""
    summary = read_json(folder / DONE) if (folder / TRACE).is_file() else None
    valid = isinstance(summary, dict) and isinstance(summary.get("totals"), dict) and genuine(summary)
    return summary if valid else None


def damage(folder: Path) -> str | None:
    """Return briefly what is wrong with the results of a finished method, or None.

    Reads the whole trace for its checksum: a second for each 1 to 2 GB.

    Raises:
        UserError: a file exists and cannot be read.
    """
    if not (folder / TRACE).is_file():
        return f"{TRACE} is gone"
    if (summary := done(folder)) is None:
        return f"{DONE} is missing or damaged"
    try:
        return changed(folder, summary)
    except OSError as error:
        raise unreadable(error, folder / TRACE) from error


def clear(folder: Path) -> None:
    """Remove the damaged results of a method, but keep the record of how it was computed.

    Raises:
        UserError: they cannot be removed.
    """
    for name in (DONE, TRACE, "blocks"):
        remove(folder / name)


def steps_done(folder: Path) -> int:
    """Return how many steps a method's folder seems to hold: all if it is finished, else those of its blocks."""
    if damage(folder) is None:
        return sys.maxsize
    return max((_span(path)[1] - 1 for path in _blocks_of(folder / "blocks")), default=0)


def load_block(path: Path) -> dict[str, Array] | None:
    """Return the arrays of a block, or None if it is damaged; its checksums are checked, pickles refused."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    # What a damaged archive can raise, from the file, its directory or an array's header.
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        RuntimeError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ):
        return None


def _blocks_of(folder: Path) -> list[Path]:
    """Return the blocks of a folder in order; files with other names are ignored."""
    return sorted(path for path in folder.glob("*.npz") if _NAME.fullmatch(path.name))


def _of_state(key: str) -> bool:
    return "/" in key and not key.startswith(_OURS)


def _span(path: Path) -> tuple[int, int]:
    first, _, stop = path.stem.partition("-")
    return int(first), int(stop)


def _joined(parts: Sequence[Array]) -> Array:
    """Concatenate along the draws; a constant is kept once."""
    # A broadcast number has strides of 0: compiled loops return constants this way.
    if all(_constant(part) for part in parts):
        values = np.asarray([part[0, 0] for part in parts])
        if (values == values[0]).all() or np.isnan(values).all():
            return np.asarray(values[0])
    return np.concatenate(parts, axis=0 if parts[0].ndim == 1 else 1)


def _constant(values: Array) -> bool:
    return bool(values.ndim == 2 and not any(values.strides) and values.size)
