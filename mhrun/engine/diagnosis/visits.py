"""Whether chains went where a pilot found mass: to each known mode, and far from a narrow one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mhrun.engine.diagnosis.kept_draws import some_draws
from mhrun.engine.landscape.laplace import NormalMode, normal_mode, shares
from mhrun.engine.landscape.modes import find_modes
from mhrun.engine.landscape.surface import Surface
from mhrun.engine.method import Method

VISITS, BEYOND = "mode_visits", "draws_beyond"  # in a summary
_MAX_DRAWS, _MIN_DRAWS = 4_000, 100  # draws that are looked at
_ASCENTS = 4  # from draws
_NEAR = 1.0  # standard deviations of either between two points that are one mode


class Visits(NamedTuple):
    """Draws at a mode that a pilot found."""

    found: float  # the share of draws there
    share: float  # of its mass in that of all known modes, by Laplace's approximation


def visits(method: Method, trace: xr.DataTree) -> list[Visits] | None:
    """Return the shares of draws at the modes that the pilot of a method found, of draws at the lowest temperature.

    The known modes are these, and those to which ascents from draws lead: chains may have left the modes where they
    began for one of far more mass. A draw is at the mode whose normal density is the highest there, with the mode as
    its mean and the inverse of the curvature at it as its covariance.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        One for each of the pilot's modes, in their order. None if it knows a single one, and if few draws were kept.
    """
    found = None if method.pilot is None else method.pilot.get("modes")
    points = None if found is None else _cold_points(method, trace)
    if found is None or points is None:
        return None
    surface = _surface(method)
    first = points[:: math.ceil(len(points) / _ASCENTS)].to(method.target.device, method.dtype)
    known = [_mode_at(method, surface, mode["theta"]) for mode in found]
    for place in find_modes(surface, first).theta.tolist():
        end = _mode_at(method, surface, place)
        if all(each.is_apart(end, _NEAR) for each in known):
            known.append(end)
    densities = torch.stack([each.log_density(points) for each in known])
    nearest = densities.nan_to_num(-math.inf, -math.inf, -math.inf).argmax(0)
    at_each = torch.bincount(nearest, minlength=len(known)) / len(points)
    return [Visits(float(at_each[k]), float(share)) for k, share in enumerate(shares(known)[: len(found)])]


def draws_beyond(method: Method, trace: xr.DataTree) -> float | None:
    """Return the share of draws beyond the radius about the highest mode where a pilot found mass, of the coldest ones.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        None if the pilot found none, and if few draws were kept.
    """
    beyond = None if method.pilot is None else method.pilot.get("beyond")
    points = None if beyond is None else _cold_points(method, trace)
    if beyond is None or points is None:
        return None
    mode = _mode_at(method, _surface(method), beyond["theta"])
    return float((mode.squared_distances(points) > beyond["radius"] ** 2).double().mean())


def _mode_at(method: Method, surface: Surface, place: Sequence[float]) -> NormalMode:
    return normal_mode(surface, torch.tensor(place, dtype=method.dtype, device=method.target.device))


def _surface(method: Method) -> Surface:
    temperature = float(method.plan.collected_controls.noise_temperature.min())
    return Surface(method.target, temperature, method.seed)


def _cold_points(method: Method, trace: xr.DataTree) -> Tensor | None:
    """Return draws at the lowest temperature (P, D), float64; None if few were kept."""
    if method.shape.thin is None:
        return None
    temperatures = method.plan.collected_controls.noise_temperature
    cold = np.flatnonzero(temperatures == temperatures.min())
    draws = some_draws(method, trace, cold, _MAX_DRAWS, fewest=_MIN_DRAWS)
    return None if draws is None else draws.reshape(-1, draws.shape[-1])
