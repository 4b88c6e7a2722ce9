"""Whether chains went to another mode that a pilot found."""

from __future__ import annotations

import math

import numpy as np
import torch
import xarray as xr

from mhrun.engine.curvature import hessian
from mhrun.engine.diagnosis.kept_draws import some_draws
from mhrun.engine.method import Method
from mhrun.engine.surface import Surface

VISITS = "other_mode_visits"  # in a summary
_MAX_DRAWS, _MIN_DRAWS = 4_000, 100  # draws that are looked at


def visits(method: Method, trace: xr.DataTree) -> float | None:
    """Return the share of draws at the other mode that the pilot of a method found, those at the lowest temperature.

    A draw is at the mode whose normal density is the highest there, of those at which the chains began and the other
    one: with the mode as its mean, and the inverse of the curvature at it as its covariance.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        None without another mode, and if few draws were kept.
    """
    mode = None if method.pilot is None else method.pilot.get("other_mode")
    if mode is None or method.shape.thin is None:
        return None
    temperatures = method.plan.collected_controls.noise_temperature
    cold = np.flatnonzero(temperatures == temperatures.min())
    draws = some_draws(method, trace, cold, _MAX_DRAWS, fewest=_MIN_DRAWS)
    if draws is None:
        return None
    surface = Surface(method.target, float(temperatures.min()), method.seed)
    points = draws.reshape(-1, draws.shape[-1])
    heights = []
    for place in [*mode["begun"], mode["theta"]]:
        center = torch.tensor(place, dtype=torch.float64)
        curvature = hessian(surface, center.to(device=method.target.device, dtype=method.dtype))
        away = points - center
        squared = (away @ curvature * away).sum(1) / surface.temperature
        heights.append(0.5 * float(torch.logdet(curvature)) - 0.5 * squared)
    highest = torch.stack(heights).nan_to_num(-math.inf, -math.inf, -math.inf).argmax(0)
    return float((highest == len(heights) - 1).double().mean())
