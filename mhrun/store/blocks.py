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

from mhrun.array_types import Array
from mhrun.errors import UserError
from mhrun.store.checksums import changed, file_digest, genuine, sealed
from mhrun.store.files import explain, plain, read_json, remove, unreadable, write_json, write_whole
from mhrun.store.netcdf import TRACE, Shape
from mhrun.store.totals import Totals, is_constant, last_of_burn_in
from mhrun.store.trace_file import PartialTrace

DONE = "done.json"
LAST = "last.npz"
"""The state after the last step of a finished method, and its totals (`mhrun.store.longer`)."""
SHORTER = "shorter.nc"
"""Among the blocks: the trace of a run with fewer steps, which has the draws of the first block."""
SHORTER_DIGEST = "shorter_digest"
"""In that block: the SHA-256 of this trace."""
_MAX_KEPT_STATE = 1 << 26  # bytes of a state that is kept
_NAME = re.compile(r"\d{1,18}-\d{1,18}\.npz")
# Bytes of a state above which only the last blocks keep it: that of a network would fill the disk
_LARGE_STATE = 1 << 20
_LIGHT = "light"  # suffix of a block without a state
_TOTAL = "total/"
_OUTPUT_PREFIXES = (_TOTAL, "draw/", "metrics/")  # prefix of what a block holds besides the state


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
        self.shape = shape
        self.info = dict(info)
        self.wall_s = self.warmup_wall_s = 0.0  # until now, and at the end of burn-in
        self.totals = Totals(shape, n)
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
            if content is not None and SHORTER_DIGEST in content and not self._has_shorter(content):
                content = None
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
        totals = {key.removeprefix(_TOTAL): value for key, value in last.items() if key.startswith(_TOTAL)}
        self.totals.restore(totals)
        self.wall_s, self.warmup_wall_s = float(last["wall"]), float(last["warmup_wall"])
        self._pending_from = next_step
        return Checkpoint(next_step - 1, {key: value for key, value in last.items() if _of_state(key)})

    def _has_shorter(self, block: Mapping[str, Array]) -> bool:
        """Return whether the trace that has the draws of a block is there, and unchanged."""
        path = self._blocks / SHORTER
        try:
            return path.is_file() and file_digest(path) == bytes(block[SHORTER_DIGEST]).hex()
        except OSError as error:
            raise unreadable(error, path) from error

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
        draws: dict[str, Array] = {"theta": record["theta"], "wall_s": wall[kept]}
        if (last := last_of_burn_in(self.shape, first_step, count)) is not None:
            self.warmup_wall_s = float(wall[last])
        values = {**record, **self.totals.add(first_step, record)}
        draws |= {name: values[name][:, kept] for name in self.info}
        if self.shape.stats_thin > 1:  # a view would keep the thinned-out steps in memory
            draws = {name: values if is_constant(values) else values.copy() for name, values in draws.items()}
        self._pending.append(draws)
        self._bytes += sum(a.nbytes for a in draws.values())

    def note(self, step: int, metrics: Mapping[str, Array]) -> None:
        """Append a row of a monitor's metrics after `step`, name -> (C,)."""
        position = {"step": np.asarray(step), "wall_s": np.asarray(self.wall_s)}
        self._monitored.append({**position, **self.totals.counts(), **metrics})

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
        content = dict(checkpoint.arrays) | {f"{_TOTAL}{key}": value for key, value in self.totals.items()}
        for name in self._pending[0]:
            content[f"draw/{name}"] = _joined([draws[name] for draws in self._pending])
        for name in self._monitored[0] if self._monitored else ():
            content[f"metrics/{name}"] = np.stack([row[name] for row in self._monitored])
        content["wall"], content["warmup_wall"] = np.asarray(self.wall_s), np.asarray(self.warmup_wall_s)
        stop = checkpoint.step + 1
        path = self._blocks / block_name(self._pending_from, stop)
        write_whole(path, lambda file: np.savez(file, **content))  # type: ignore[arg-type]
        self._pending, self._monitored, self._pending_from, self._bytes = [], [], stop, 0
        if sum(array.nbytes for array in checkpoint.arrays.values()) > _LARGE_STATE:
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
                block = load_block(path)
                if block is not None and SHORTER_DIGEST in block:
                    trace.append_trace(self._blocks / SHORTER)
                else:
                    trace.append(block)
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

    def finish(
        self,
        attributes: Mapping[str, Any],
        facts: Mapping[str, Any],
        of_draws: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Write ``trace.nc`` from the blocks, record that the method is done, and remove the blocks.

        `attributes` go into the trace, `facts` into the record of completion (see `done`), and so does what `of_draws`
        returns, which is called when the trace is there. A kill in between leaves the blocks, and the next start calls
        this again.

        Raises:
            UserError: a block is damaged, the disk is full or the folder cannot be written.
        """
        if self._converter is not None:
            self._converter.join()
        try:
            self._append_blocks().finish(attributes)
        finally:
            self._abandon_trace()
        self._keep_last()
        totals = {key: value.tolist() for key, value in self.totals.items()}
        summary = plain(
            {
                "totals": totals,
                "wall_s": self.wall_s,
                "warmup_wall_s": self.warmup_wall_s,
                **facts,
                **of_draws(),
            }
        )
        try:
            digest = file_digest(self.folder / TRACE)
        except OSError as error:
            raise explain(error, self.folder / TRACE) from error
        write_json(self.folder / DONE, sealed(summary, {TRACE: digest}))
        remove(self._blocks)

    def _keep_last(self) -> None:
        """Keep the state after the last step, unless it is large, for a run with more steps."""
        last = load_block(self._sorted()[-1]) or {}
        state = {key: value for key, value in last.items() if not key.startswith(("draw/", "metrics/"))}
        if last and _LIGHT not in last and sum(value.nbytes for value in state.values()) <= _MAX_KEPT_STATE:
            state.pop(SHORTER_DIGEST, None)
            write_whole(self.folder / LAST, lambda file: np.savez(file, **state))  # type: ignore[arg-type]

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
    for name in (DONE, TRACE, LAST, "blocks"):
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


def block_name(first: int, stop: int) -> str:
    """Return the name of the block with the steps from `first` on, up to and without `stop`."""
    return f"{first:012d}-{stop:012d}.npz"


def _blocks_of(folder: Path) -> list[Path]:
    """Return the blocks of a folder in order; files with other names are ignored."""
    return sorted(path for path in folder.glob("*.npz") if _NAME.fullmatch(path.name))


def _of_state(key: str) -> bool:
    return "/" in key and not key.startswith(_OUTPUT_PREFIXES)


def _span(path: Path) -> tuple[int, int]:
    first, _, stop = path.stem.partition("-")
    return int(first), int(stop)


def _joined(parts: Sequence[Array]) -> Array:
    """Concatenate along the draws; a constant is kept once."""
    if all(is_constant(part) for part in parts):
        values = np.asarray([part[0, 0] for part in parts])
        if (values == values[0]).all() or np.isnan(values).all():
            return np.asarray(values[0])
    return np.concatenate(parts, axis=0 if parts[0].ndim == 1 else 1)
