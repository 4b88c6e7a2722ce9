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
_WITHIN = 2.0  # standard deviations beyond sqrt(D), that a draw at a mode is
_NEAR = 1.0  # standard deviations of either between two points that are one mode


class Visits(NamedTuple):
    """Draws at the modes that a pilot found, in their order."""

    found: list[float]  # the share of draws at each
    share: list[float]  # of its mass in that of all known modes, by Laplace's approximation
    crossings: float  # how often a chain goes from one known mode to another, on average, among these draws


def visits(method: Method, trace: xr.DataTree) -> Visits | None:
    """Return the shares of draws at the modes that the pilot of a method found, of draws at the lowest temperature.

    The known modes are these, and those to which ascents from draws lead: chains may have left the modes where they
    began for one of far more mass. A draw is at the mode whose normal density is the highest there, with the mode as
    its mean and the inverse of the curvature at it as its covariance, if it is within sqrt(D) + 2 standard deviations:
    farther draws are in the tails of any mode.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        None if the pilot knows a single mode, and if few draws were kept.
    """
    found = None if method.pilot is None else method.pilot.get("modes")
    draws = None if found is None else _cold_draws(method, trace)
    if found is None or draws is None:
        return None
    surface, points = _surface(method), draws.flatten(0, 1)
    first = points[:: math.ceil(len(points) / _ASCENTS)].to(method.target.device, method.dtype)
    known = [_mode_at(method, surface, mode["theta"]) for mode in found]
    for place in find_modes(surface, first).theta.tolist():
        end = _mode_at(method, surface, place)
        if all(each.is_apart(end, _NEAR) for each in known):
            known.append(end)
    densities = torch.stack([each.log_density(points) for each in known])
    nearest = densities.nan_to_num(-math.inf, -math.inf, -math.inf).argmax(0)
    squared = torch.stack([each.squared_distances(points) for each in known])
    near = squared.gather(0, nearest[None])[0] <= (math.sqrt(points.shape[1]) + _WITHIN) ** 2
    at_each = torch.bincount(nearest[near], minlength=len(known)) / len(points)
    count = len(found)
    return Visits(
        at_each[:count].tolist(), shares(known)[:count].tolist(), _crossings(nearest, near, len(draws))
    )


def _crossings(nearest: Tensor, near: Tensor, chains: int) -> float:
    """Return how often a chain goes from one mode to another, on average, from the modes of draws (C S,)."""
    of_chains = zip(nearest.reshape(chains, -1), near.reshape(chains, -1), strict=True)
    return sum(int((places[at].diff() != 0).sum()) for places, at in of_chains) / chains


def draws_beyond(method: Method, trace: xr.DataTree) -> float | None:
    """Return the share of draws beyond the radius about the highest mode where a pilot found mass, of the coldest ones.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        None if the pilot found none, and if few draws were kept.
    """
    beyond = None if method.pilot is None else method.pilot.get("beyond")
    draws = None if beyond is None else _cold_draws(method, trace)
    if beyond is None or draws is None:
        return None
    mode = _mode_at(method, _surface(method), beyond["theta"])
    return float((mode.squared_distances(draws.flatten(0, 1)) > beyond["radius"] ** 2).double().mean())


def _mode_at(method: Method, surface: Surface, place: Sequence[float]) -> NormalMode:
    return normal_mode(surface, torch.tensor(place, dtype=method.dtype, device=method.target.device))


def _surface(method: Method) -> Surface:
    temperature = float(method.plan.collected_controls.noise_temperature.min())
    return Surface(method.target, temperature, method.seed)


def _cold_draws(method: Method, trace: xr.DataTree) -> Tensor | None:
    """Return draws at the lowest temperature (C, S, D), float64; None if few were kept."""
    if method.shape.thin is None:
        return None
    temperatures = method.plan.collected_controls.noise_temperature
    cold = np.flatnonzero(temperatures == temperatures.min())
    return some_draws(method, trace, cold, _MAX_DRAWS, fewest=_MIN_DRAWS)
