"""Draws from the correction distribution, by tables that are computed once.

`mhrun.rules.deconvolution` defines the correction and solves for it; `mhrun.rules.series` gives it as a series.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from torch import Tensor

from mhrun.array_cache import kept
from mhrun.errors import Refusal, check_choice
from mhrun.native import piece
from mhrun.rules.deconvolution import (
    REACH,
    Correction,
    check_sigma,
    convolved_cdf,
    nonnegative,
    ridge,
    ridges,
)
from mhrun.rules.series import TERMS, root, series

__all__ = [
    "Correction",
    "Quantiles",
    "convolved_cdf",
    "correction",
    "inverse",
    "nonnegative",
    "quantiles",
    "ridge",
    "ridges",
    "series_quantiles",
    "table",
]

# Default lambda and half width of the grid in steps.
_DEFAULTS = {"paper": (10.0, 4000), "nnls": (1e-6, 160)}
_MAX_ERROR = 0.01  # error of the acceptance probability up to which a table is taken
_LOG_RATIOS = np.linspace(-12.0, 12.0, 241)  # at which that of a series is computed
_MAX_HALF_WIDTH = 10**6  # of a grid, in steps
_VERSION = 1  # version of the solver; cached files of another version are computed again


@lru_cache(maxsize=64)
def correction(
    kind: str, sigma: float, lam: float | None = None, half_width_steps: int | None = None
) -> Correction:
    """Return a correction, computed once and then read from the cache folder.

    Kind ``paper`` with (sigma, lambda, G) = (1, 10, 4000), (0.9, 1, 4000) and (0.9, 0.03, 2000) gives the tables that
    the authors released, to ten decimal places.

    Args:
        kind: ``paper`` (`ridges`; the paper uses lambda = 10 and G = 4000) or ``nnls`` (`nonnegative`; lambda = 1e-6
            and G = 160).
        sigma: standard deviation of the normal variable, between 0 and pi / sqrt(3).
        lam: lambda, if not the default.
        half_width_steps: G, half the width of the grid in steps, if not the default.

    Raises:
        Refusal: an unknown kind, or an invalid setting.
    """
    check_choice("correction", kind, _DEFAULTS)
    sigma = float(sigma)
    lam = _DEFAULTS[kind][0] if lam is None else float(lam)
    half = _DEFAULTS[kind][1] if half_width_steps is None else half_width_steps
    check_sigma(sigma)
    if half > _MAX_HALF_WIDTH:
        raise Refusal(f"half_width_steps = {half} makes too fine a grid; choose at most {_MAX_HALF_WIDTH:,}.")

    def solve() -> dict[str, npt.NDArray[np.float64]]:
        solved = ridge(sigma, lam, half) if kind == "paper" else nonnegative(sigma, lam, half / REACH)
        return {"points": solved.points, "masses": solved.masses, "spread": np.array(solved.spread)}

    arrays = kept("correction", f"{kind}-{sigma!r}-{lam!r}-{half}", str(_VERSION), solve)
    solution = Correction(arrays["points"], arrays["masses"], sigma, float(arrays["spread"]))
    for array in (solution.points, solution.masses):
        array.setflags(write=False)  # all callers share this array
    return solution


class Quantiles(NamedTuple):
    """A piecewise linear distribution function, for sampling by inversion."""

    probabilities: Tensor  # (K,) float64, non-decreasing; from 0
    points: Tensor  # (K,) float64, increasing

    def to(self, device: torch.device | str) -> Quantiles:
        """Return the table on a device."""
        return Quantiles(self.probabilities.to(device), self.points.to(device))


def quantiles(correction: Correction, normalise: bool = True) -> Quantiles:
    """Return the table from which `inverse` draws.

    Each mass is spread uniformly over a cell of one step around its point. The corners of the distribution function are
    therefore midway between the points, and the mean stays 0. This adds step^2 / 12 to the variance of masses that were
    solved for as points (the paper's: 2e-6 at G = 4000); `nonnegative` accounts for it. The released code has the
    corners at the points, with each point's mass below it, so that its draws are half a step too low.

    Args:
        correction: the distribution to draw from.
        normalise: scale the masses to sum to 1. The released code does not, so that with a mass above 1 it never draws
            from the right end.
    """
    corners = np.append(correction.points, correction.points[-1] + correction.step) - correction.step / 2
    cumulated = np.concatenate(([0.0], np.cumsum(correction.masses)))
    if normalise:
        cumulated /= cumulated[-1]
    # Empty cells at the ends are dropped: a number beyond the last corner would be divided by zero.
    first = int(np.searchsorted(cumulated, 0.0, "right")) - 1
    last = int(np.searchsorted(cumulated, cumulated[-1]))
    cells = slice(first, last + 1)
    return Quantiles(torch.tensor(cumulated[cells]), torch.tensor(corners[cells]))


@lru_cache(maxsize=64)
def series_quantiles(variance: float, lam: float | None, terms: int | None) -> Quantiles:
    """Return the table of a series (`mhrun.rules.series`), with an error of at most 1e-7 in its cdf.

    Args:
        variance: sigma^2 of the normal variable.
        lam: lambda; None for infinity.
        terms: number of terms; None for 3.

    Raises:
        Refusal: see `series`.
    """
    density = series(variance, math.inf if lam is None else float(lam), TERMS if terms is None else terms)
    probabilities, points = density.corners()
    return Quantiles(torch.from_numpy(probabilities), torch.from_numpy(points))


def table(
    density: str,
    variance: float,
    lam: float | None = None,
    half_width_steps: int | None = None,
    terms: int | None = None,
) -> Quantiles:
    """Return the table of the density of X_corr with a given name: ``nnls``, ``paper`` or ``series``.

    Args:
        density: the name.
        variance: sigma^2 of the normal variable.
        lam: lambda of `correction` or `series_quantiles`.
        half_width_steps: setting of `correction`.
        terms: setting of `series_quantiles`.

    Raises:
        Refusal: an unknown name, an invalid setting, a setting of another density, or one with which acceptance
            probabilities would be wrong by more than 0.01.
    """
    if density == "series":
        if half_width_steps is not None:
            raise Refusal(
                "half_width_steps applies to a grid, and density = 'series' has none; leave it out."
            )
        found = series_quantiles(variance, lam, terms)
        _check_error(density, variance, _series_error(variance, lam, terms), {"lam": lam, "terms": terms})
        return found
    check_choice("density", density, (*_DEFAULTS, "series"))
    if terms is not None:
        raise Refusal(f"terms = {terms} needs density = 'series'; choose that one, or leave terms out.")
    solved = correction(density, root(variance), lam, half_width_steps)
    _check_error(density, variance, solved.error, {"lam": lam, "half_width_steps": half_width_steps})
    return quantiles(solved)


@lru_cache(maxsize=64)
def _series_error(variance: float, lam: float | None, terms: int | None) -> float:
    """Return the largest error of the acceptance probability with a series."""
    density = series(variance, math.inf if lam is None else float(lam), TERMS if terms is None else terms)
    return float(np.abs(density.convolved_cdf(_LOG_RATIOS, variance) - special.expit(_LOG_RATIOS)).max())


def _check_error(density: str, variance: float, error: float, given: Mapping[str, object]) -> None:
    """Refuse a table with which acceptance probabilities are wrong; `given`: settings that may be the cause."""
    if error <= _MAX_ERROR:
        return
    remedies = ["a smaller variance", "density = 'nnls'"][: 1 + (density != "nnls")]
    remedies += [f"no {name}" for name, value in given.items() if value is not None]
    raise Refusal(
        f"with a noise of variance {variance:g} the correction of density = {density!r} makes acceptance "
        f"probabilities wrong by up to {error:.2g}, more than {_MAX_ERROR:g}; choose {' or '.join(remedies)}."
    )


def inverse(u: Tensor, table: Quantiles) -> Tensor:
    """Return draws (C,), float64, from uniforms u (C,) in (0, 1), on the device of u."""
    probabilities, points = table if table.points.device == u.device else _placed(table, u.device)
    u = u.double()
    above = torch.searchsorted(probabilities, u, right=True).clamp_(1, len(points) - 1)
    low, high = probabilities[above - 1], probabilities[above]
    share = ((u - low) / (high - low)).clamp_(0.0, 1.0)  # beyond the ends if the masses do not sum to 1
    return torch.lerp(points[above - 1], points[above], share)


_there: dict[tuple[int, torch.device], tuple[Quantiles, Quantiles]] = {}


def _placed(table: Quantiles, device: torch.device) -> Quantiles:
    """Return the table on a device, copied there once: a decision waits for no copy."""
    key = id(table.points), device
    if key not in _there:
        _there[key] = table, table.to(device)  # the first keeps the id
    return _there[key][1]


@piece
def inverted(u: Any, probabilities: Any, points: Any) -> Any:
    """Return the draw of one uniform u; see `inverse`."""
    low, high = 0, len(probabilities) - 1
    while high - low > 1:  # probabilities[low] <= u < probabilities[high], except at the ends
        middle = (low + high) // 2
        if probabilities[middle] <= u:
            low = middle
        else:
            high = middle
    share = (u - probabilities[low]) / (probabilities[high] - probabilities[low])
    return points[low] + min(max(share, 0.0), 1.0) * (points[high] - points[low])
