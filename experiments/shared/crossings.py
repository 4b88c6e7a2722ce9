"""Where a curve reaches a level."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def first_crossing(x: Array, y: Array, level: float, *, log: bool = False) -> float:
    """Return the x at which y first comes up to a level, linear between points; in the logarithm of x with `log`.

    The first x where y is there from the first; NaN where it never is. For a curve that comes down to a level, pass -y
    and -level.

    Args:
        x: in the order in which they are passed (S,); positive with `log`.
        y: at them (S,).
        level: of y.
        log: whether points are joined in log x.
    """
    reached = np.flatnonzero(y >= level)
    if not len(reached) or reached[0] == 0:
        return float(x[0]) if len(reached) else float("nan")
    i = int(reached[0])
    share = (level - y[i - 1]) / (y[i] - y[i - 1])
    if log:
        return float(x[i - 1] * (x[i] / x[i - 1]) ** share)
    return float(x[i - 1] + share * (x[i] - x[i - 1]))
