"""Whether chains went where a pilot found mass: to another mode, and far from a narrow one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mhrun.engine.curvature import hessian
from mhrun.engine.diagnosis.kept_draws import some_draws
from mhrun.engine.method import Method
from mhrun.engine.modes import find_modes
from mhrun.engine.surface import Surface

VISITS, BEYOND = "other_mode_visits", "draws_beyond"  # in a summary
_MAX_DRAWS, _MIN_DRAWS = 4_000, 100  # draws that are looked at
_ASCENTS = 4  # from draws
_NEAR = 1.0  # standard deviations of either between two points that are one mode


class Visits(NamedTuple):
    """Draws at another mode that a pilot found."""

    found: float  # the share of draws there
    share: float  # of its mass in that of all known modes, by Laplace's approximation


def visits(method: Method, trace: xr.DataTree) -> Visits | None:
    """Return the share of draws at the other mode that the pilot of a method found, those at the lowest temperature.

    The known modes are the other one, those at which the chains began, and those to which ascents from draws lead:
    chains may have left the modes where they began for one of far more mass. A draw is at the mode whose normal density
    is the highest there, with the mode as its mean and the inverse of the curvature at it as its covariance.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        None without another mode, and if few draws were kept.
    """
    mode = None if method.pilot is None else method.pilot.get("other_mode")
    points = None if mode is None else _cold_points(method, trace)
    if mode is None or points is None:
        return None
    surface = _surface(method)
    first = points[:: math.ceil(len(points) / _ASCENTS)].to(method.target.device, method.dtype)
    ends = find_modes(surface, first).theta.tolist()
    modes = [_mode_at(surface, mode["theta"], method.dtype)]
    for place in (*mode["begun"], *ends):
        known = _mode_at(surface, place, method.dtype)
        if all(each.is_apart(known) for each in modes):
            modes.append(known)
    densities = torch.stack([each.log_density(points) for each in modes])
    masses = torch.tensor([each.log_mass for each in modes])
    at_other = densities.nan_to_num(-math.inf, -math.inf, -math.inf).argmax(0) == 0
    share = float(masses.nan_to_num(-math.inf, -math.inf, -math.inf).softmax(0)[0])
    return Visits(float(at_other.double().mean()), share)


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
    mode = _mode_at(_surface(method), beyond["theta"], method.dtype)
    return float((mode.squared_distances(points) > beyond["radius"] ** 2).double().mean())


class _Mode(NamedTuple):
    """A mode with its normal density."""

    center: Tensor  # (D,)
    precision: Tensor  # (D, D)
    height: float  # log density

    def squared_distances(self, points: Tensor) -> Tensor:
        """Return the squared distances of points (P, D), in standard deviations."""
        away = points - self.center
        return (away @ self.precision * away).sum(1)

    def log_density(self, points: Tensor) -> Tensor:
        """Return the normal log density (P,), but for a constant."""
        return 0.5 * torch.logdet(self.precision) - 0.5 * self.squared_distances(points)

    @property
    def log_mass(self) -> float:
        """The log of the mass by Laplace's approximation, but for a constant."""
        return self.height - 0.5 * float(torch.logdet(self.precision))

    def is_apart(self, other: _Mode) -> bool:
        """Return whether another one is not the same, by the curvature at either."""
        distances = (
            self.squared_distances(other.center[None]),
            other.squared_distances(self.center[None]),
        )
        return all(not float(squared) < _NEAR**2 for squared in distances)


def _mode_at(surface: Surface, place: Sequence[float], dtype: torch.dtype) -> _Mode:
    center = torch.tensor(place, dtype=torch.float64)
    at = center.to(surface.target.device, dtype)
    height = float(surface.value_and_grad(at[None])[0]) / surface.temperature
    return _Mode(center, hessian(surface, at).double() / surface.temperature, height)


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
