"""Effective sample size and R-hat, as ArviZ computes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating]


def ess(draws: Array, method: str = "bulk") -> float:
    """Return the effective sample size of draws (C, S) (Vehtari et al. 2021).

    `method` is one of ArviZ's: bulk, tail, mean. Constant or non-finite draws give NaN.
    """
    from arviz_stats.base.array import array_stats

    if not np.isfinite(draws).all() or np.ptp(draws) == 0 or draws.shape[1] < 4:
        return float("nan")
    return float(array_stats.ess(draws, method=method))


def rhat(draws: Array, most: int = 5000) -> float:
    """Return the rank-normalised split R-hat of draws (C, S); NaN when it cannot be told, as of one chain.

    Longer chains are thinned to `most` draws: that costs R-hat nothing, and ranking is what takes the time.
    """
    from arviz_stats.base.array import array_stats

    if len(draws) < 2 or not np.isfinite(draws).all() or np.ptp(draws) == 0 or draws.shape[1] < 4:
        return float("nan")
    return float(array_stats.rhat(draws[:, :: -(-draws.shape[1] // most)]))
