"""Whether the chains of a dynamics have settled, without which its draws show nothing of a stationary distribution."""

from __future__ import annotations

import numpy as np
import xarray as xr

from mhrun.diagnostics.chains import SETTLED, diagnosis, some_coordinates
from mhrun.engine.diagnosis.kept_draws import cold_draws
from mhrun.engine.method import Method

UNSETTLED = "unsettled_rhat"  # in a summary
_MAX_DRAWS, _MIN_DRAWS, _MAX_COORDINATES = 20_000, 100, 50  # draws and coordinates that are looked at


def rhat_of_unsettled(method: Method, trace: xr.DataTree) -> float | None:
    """Return the largest R-hat of the draws of a dynamics if it is above 1.1, else None.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        None also for another kernel than a dynamics, for an optimiser, and if few draws were kept.
    """
    count = min(_MAX_DRAWS, _MAX_DRAWS * _MAX_COORDINATES // method.target.dim)
    draws = cold_draws(method, trace, count, fewest=_MIN_DRAWS)
    if draws is None or not bool(draws.isfinite().all()):
        return None
    looked_at = some_coordinates(draws.shape[-1], _MAX_COORDINATES)
    rhat = np.nanmax([1.0, *(diagnosis(draws[..., place].numpy()).rhat for place in looked_at)])
    return float(rhat) if rhat > SETTLED else None
