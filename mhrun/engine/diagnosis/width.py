"""How wide the draws of a dynamics are, in the scale of its steps."""

from __future__ import annotations

import torch
import xarray as xr

from mhrun.engine.diagnosis.excess_variance import scale_of_dynamics
from mhrun.engine.diagnosis.kept_draws import cold_draws
from mhrun.engine.method import Method

WIDTH = "width"  # in a summary
WIDE = 3.0  # above which a run warns: 1 of a normal posterior, 1.3 of the log of a rate with one event
_MAX_DRAWS, _MIN_DRAWS = 2_000, 100  # draws that are looked at
_MAX_DIM = 2_000  # parameters up to which they are looked at


def width_of_draws(method: Method, trace: xr.DataTree) -> float | None:
    """Return the largest standard deviation of draws in the coordinates in which the dynamics moves, over sqrt(T).

    A pilot's scale is from the inverse of the curvature at the mode, or from the covariance of its draws, so that this
    is about 1 if the posterior is nearly normal. A gradient that grows as exp does throws a chain far to the flat side
    of the mode, from where it drifts back slowly: all chains do the same, and R-hat and ESS look right.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        None for another kernel than a dynamics with a scale, on a ladder, for an optimiser, and if few draws were kept.
    """
    kernel = method.kernel
    scale = scale_of_dynamics(kernel)
    if scale is None or kernel.rungs > 1 or kernel.optimises or method.shape.thin is None:
        return None
    temperatures = method.plan.collected_controls.noise_temperature
    if not (temperatures > 0).all() or method.target.dim > _MAX_DIM:
        return None
    draws = cold_draws(method, trace, _MAX_DRAWS, fewest=_MIN_DRAWS)
    if draws is None or not bool(draws.isfinite().all()):
        return None
    away = draws.reshape(-1, draws.shape[-1]) - scale.center
    scaled = away @ scale.inverse.T if scale.dense else away * scale.inverse
    return float(torch.std(scaled, 0).max()) / float(temperatures.min()) ** 0.5
