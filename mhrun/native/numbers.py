"""Minibatch indices and normals for the torch path from the compiled generator: the same numbers, faster."""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.native.compiler import Piece, compiled
from mhrun.native.forms import Draw
from mhrun.native.indices import Workspace, filler, independent, workspace
from mhrun.native.philox import MINIBATCH, arrival, fill_normals, split_key

u64 = np.uint64
_PART = 1024  # elements of a large permutation drawn at once
_local = threading.local()


@lru_cache(maxsize=1)
def _independent_loop() -> Piece:
    def loop(out: Any, n: Any, step: Any, chains: Any, key: Any, purpose: Any, start: Any) -> None:
        m = out.shape[2]
        index = np.empty(m + 1, np.int64)
        for k in range(out.shape[0]):
            for c in range(out.shape[1]):
                independent(index, m, n, Draw(key, step + u64(k), chains[c]), purpose, start, 0)
                out[k, c, :] = index[:m]

    return compiled(loop)


def independent_indices(
    key: int,
    step: int,
    steps: int,
    chains: npt.NDArray[np.int64],
    n: int,
    m: int,
    use: int = 0,
    start: int = 0,
) -> npt.NDArray[np.int64]:
    """Return the minibatches of some steps, drawn with replacement, (steps, len(chains), m)."""
    out = np.empty((steps, len(chains), m), np.int64)
    purpose = MINIBATCH + u64(use << 20)
    _independent_loop()(out, u64(n), u64(step), chains.astype(u64), split_key(key), purpose, start)
    return out


@lru_cache(maxsize=2)
def _permutation_loop(fill: Piece) -> Piece:
    def loop(
        out: Any, start: Any, n: Any, steps: Any, chains: Any, key: Any, purpose: Any, work: Any
    ) -> None:
        stop = start + out.shape[1]
        part = min(stop, _PART) if len(work.table) == 0 else stop
        index = np.empty(part + 1, np.int64)
        for r in range(out.shape[0]):
            drawn = 0
            while drawn < stop:
                count = min(part, stop - drawn)
                fill(index, count, n, Draw(key, steps[r], chains[r]), purpose, drawn, work)
                for j in range(max(start - drawn, 0), count):
                    out[r, drawn + j - start] = index[j]
                drawn += count

    return compiled(loop)


def permutations(
    key: int,
    steps: npt.NDArray[np.int64],
    chains: npt.NDArray[np.int64],
    n: int,
    start: int,
    stop: int,
    use: int = 0,
    dtype: type[np.integer] = np.int64,
) -> npt.NDArray[np.integer]:
    """Return elements start..stop of random permutations of n data, (R, stop - start).

    Each belongs to a chain, by number, and a step, (R,) each. Takes time proportional to `stop`.
    """
    out = np.empty((len(steps), stop - start), dtype)
    loop, purpose = _permutation_loop(filler(n)), MINIBATCH + u64(use << 20)
    loop(
        out,
        start,
        u64(n),
        steps.astype(u64),
        chains.astype(u64),
        split_key(key),
        purpose,
        _workspace(n, stop),
    )
    return out


def _workspace(n: int, largest: int) -> Workspace:
    """Return this thread's workspace; the last one is reused."""
    capacity, work = getattr(_local, "work", ((0, 0), None))
    if work is None or capacity[0] != n or capacity[1] < largest:
        capacity, work = (n, largest), workspace(n, largest)
        _local.work = capacity, work
    return work


@lru_cache(maxsize=1)
def _normal_loop() -> Piece:
    def loop(out: Any, purpose: Any, step: Any, chains: Any, key: Any) -> None:
        for c in range(out.shape[0]):
            fill_normals(out[c], purpose, Draw(key, step, chains[c]))

    return compiled(loop)


def normals(
    key: int,
    step: int,
    chains: npt.NDArray[np.int64],
    count: int,
    purpose: int,
    use: int = 0,
    dtype: str = "float64",
) -> npt.NDArray[np.floating]:
    """Return standard normals of one step, (len(chains), count)."""
    out = np.empty((len(chains), count), dtype)
    place = u64((purpose << 24) + (use << 20))
    _normal_loop()(out, place, u64(step), chains.astype(u64), split_key(key))
    return out


@lru_cache(maxsize=1)
def _arrival_loop() -> Piece:
    def loop(out: Any, n: Any, start: Any, step: Any, chains: Any, key: Any) -> None:
        for k in range(out.shape[0]):
            for c in range(out.shape[1]):
                draw = Draw(key, step + u64(k), chains[c])
                for j in range(out.shape[3]):
                    slot, coin, gap, uniform = arrival(start + u64(j), n, draw)
                    out[k, c, 0, j] = np.float64(slot)
                    out[k, c, 1, j] = coin
                    out[k, c, 2, j] = gap
                    out[k, c, 3, j] = uniform

    return compiled(loop)


def arrival_marks(
    key: int, step: int, steps: int, chains: npt.NDArray[np.int64], n: int, start: int, count: int
) -> npt.NDArray[np.float64]:
    """Return slot, coin, gap and uniform of arrivals start, start + 1, ..., (steps, len(chains), 4, count)."""
    out = np.empty((steps, len(chains), 4, count))
    _arrival_loop()(out, u64(n), u64(start), u64(step), chains.astype(u64), split_key(key))
    return out
