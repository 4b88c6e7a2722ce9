"""Minibatch indices and many normals for the plain path, made by the compiled generator: the same numbers, sooner."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.native.compiler import Piece, compiled
from mhrun.native.philox import MINIBATCH, fill_normals, filler, split_key

u64 = np.uint64


@lru_cache(maxsize=3)
def _loop(fill: Piece) -> Piece:
    def loop(
        out: Any,
        m: Any,
        n: Any,
        sides: Any,
        step: Any,
        chains: Any,
        key: Any,
        purpose: Any,
        start: Any,
    ) -> None:
        index = np.empty(m + 1, np.int64)
        for k in range(out.shape[0]):
            for c in range(out.shape[1]):
                fill(index, m, n, sides, step + u64(k), chains[c], key, purpose, start)
                out[k, c, :] = index[:m]

    return compiled(loop)


def indices(
    key: int,
    step: int,
    steps: int,
    chains: npt.NDArray[np.int64],
    n: int,
    m: int,
    sides: tuple[int, int],
    replacement: bool,
    use: int = 0,
    start: int = 0,
) -> npt.NDArray[np.int64]:
    """Return the minibatches of some steps, (steps, len(chains), m)."""
    out = np.empty((steps, len(chains), m), np.int64)
    loop = _loop(filler(n, replacement))
    purpose = MINIBATCH + u64(use << 20)
    place = (u64(n), (u64(sides[0]), u64(sides[1])), u64(step), chains.astype(u64))
    loop(out, m, *place, split_key(key), purpose, start)
    return out


@lru_cache(maxsize=1)
def _normal_loop() -> Piece:
    def loop(out: Any, purpose: Any, step: Any, chains: Any, key: Any) -> None:
        for c in range(out.shape[0]):
            fill_normals(out[c], purpose, step, chains[c], key)

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
