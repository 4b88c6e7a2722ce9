"""Walker's alias method: draws from n weights in constant time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.array_types import Float64Array
from mhrun.native.compiler import Piece, available, compiled

_MAX_INTERPRETED = 20_000  # weights up to which compiling does not pay


def alias_table(weights: npt.ArrayLike) -> tuple[Float64Array, npt.NDArray[np.int64]]:
    """Return ``cut`` (n,) and ``other`` (n,): slot j is datum j if a uniform is below cut[j], else other[j].

    With a uniform slot, datum i is drawn with probability weights[i] / sum(weights) (Vose 1991). Weights that are all
    0 give a uniform draw.
    """
    share = np.array(weights, np.float64)
    total = share.sum()
    share = share * (len(share) / total) if total > 0 else np.ones_like(share)
    other = np.arange(len(share))
    fill = _fill if len(share) <= _MAX_INTERPRETED or not available() else _compiled_fill()
    fill(share, other, np.empty(len(share), np.int64))
    return share, other


@lru_cache(maxsize=1)
def _compiled_fill() -> Piece:
    return compiled(_fill)


def _fill(share: Any, other: Any, stack: Any) -> None:
    """Turn shares with mean 1 into cuts, in place; `stack` (n,) is working memory."""
    small, large = 0, len(share)  # those below 1 from the front, the others from the back
    for i in range(len(share)):
        if share[i] < 1.0:
            stack[small] = i
            small += 1
        else:
            large -= 1
            stack[large] = i
    at = 0
    while at < small and large < len(share):
        low, high = stack[at], stack[large]
        at += 1
        other[low] = high
        share[high] -= 1.0 - share[low]
        if share[high] < 1.0:  # it needs the rest of another itself
            large += 1
            stack[small] = high
            small += 1
    for k in range(at, small):
        share[stack[k]] = 1.0  # rounding
    for k in range(large, len(share)):
        share[stack[k]] = 1.0
