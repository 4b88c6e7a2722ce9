"""Draws of the correction distribution, from tables that are made once.

`mhrun.rules.deconvolution` says what the correction is and solves for it; `mhrun.rules.series` has it as a sum.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from torch import Tensor

from mhrun.data.generated import kept
from mhrun.errors import Refusal, nearest
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
    "kolmogorov",
    "nonnegative",
    "quantiles",
    "ridge",
    "ridges",
    "series_quantiles",
    "table",
]

# What is solved when nothing else is asked for: lambda and the half width of the grid in steps.
_DEFAULTS = {"paper": (10.0, 4000), "nnls": (1e-6, 160)}
_WIDEST = 10**6  # steps of half a grid
_VERSION = 1  # of what is solved; with another number every old file is computed again


@lru_cache(maxsize=64)
def correction(
    kind: str, sigma: float, lam: float | None = None, half_width_steps: int | None = None
) -> Correction:
    """Return a correction, computed once and then read from the cache folder.

    The tables that the authors released are those of kind ``paper`` with (sigma, lambda, G) =
    (1, 10, 4000), (0.9, 1, 4000) and (0.9, 0.03, 2000), to ten digits after the point.

    Args:
        kind: ``paper`` (`ridges`; lambda 10 and G = 4000 are the paper's choice) or ``nnls``
            (`nonnegative`; lambda 1e-6 and G = 160).
        sigma: standard deviation of the normal variable, between 0 and pi / sqrt(3).
        lam: another lambda.
        half_width_steps: another G: half the width of the grid in steps.

    Raises:
        Refusal: an unknown kind, or a setting that has no meaning.
    """
    if kind not in _DEFAULTS:
        raise Refusal(f"correction = '{kind}' is unknown; choose paper or nnls.{nearest(kind, _DEFAULTS)}")
    sigma = float(sigma)
    lam = _DEFAULTS[kind][0] if lam is None else float(lam)
    half = _DEFAULTS[kind][1] if half_width_steps is None else half_width_steps
    check_sigma(sigma)
    if half > _WIDEST:
        raise Refusal(f"half_width_steps = {half} makes too fine a grid; choose at most {_WIDEST:,}.")

    def solve() -> dict[str, npt.NDArray[np.float64]]:
        solved = ridge(sigma, lam, half) if kind == "paper" else nonnegative(sigma, lam, half / REACH)
        return {"points": solved.points, "masses": solved.masses, "spread": np.array(solved.spread)}

    arrays = kept("correction", f"{kind}-{sigma!r}-{lam!r}-{half}", str(_VERSION), solve)
    found = Correction(arrays["points"], arrays["masses"], sigma, float(arrays["spread"]))
    for array in (found.points, found.masses):
        array.setflags(write=False)  # every caller has the same one
    return found


class Quantiles(NamedTuple):
    """The cumulated distribution, to be inverted: linear between its corners."""

    probabilities: Tensor  # (K,) float64, not falling; from 0
    points: Tensor  # (K,) float64, increasing

    def to(self, device: torch.device | str) -> Quantiles:
        """Return it on a device."""
        return Quantiles(self.probabilities.to(device), self.points.to(device))


def quantiles(correction: Correction, normalise: bool = True) -> Quantiles:
    """Return the table that `inverse` draws from.

    Each mass is spread evenly over the cell of one step about its point, so the corners are midway
    between the points and the mean stays 0. This adds step^2 / 12 to the variance of masses that were
    solved for as points (the paper's: 2e-6 at G = 4000); in those of `nonnegative` it is part of the
    problem solved. The released code has its corners at the points, with the mass of a point below it:
    its draws are half a step too low.

    Args:
        correction: what is drawn.
        normalise: whether the masses are made to sum to 1. The released code does not, so that with
            a mass above 1 the right end is never drawn.
    """
    corners = np.append(correction.points, correction.points[-1] + correction.step) - correction.step / 2
    cumulated = np.concatenate(([0.0], np.cumsum(correction.masses)))
    if normalise:
        cumulated /= cumulated[-1]
    # Cells without mass at the ends are left out: a number beyond the last corner would be divided by zero.
    first = int(np.searchsorted(cumulated, 0.0, "right")) - 1
    last = int(np.searchsorted(cumulated, cumulated[-1]))
    kept = slice(first, last + 1)
    return Quantiles(torch.tensor(cumulated[kept]), torch.tensor(corners[kept]))


@lru_cache(maxsize=64)
def series_quantiles(variance: float, lam: float | None = None, terms: int | None = None) -> Quantiles:
    """Return the table of a series (`mhrun.rules.series`), right to 1e-7 in distribution.

    Args:
        variance: sigma^2 of the normal variable.
        lam: lambda; None for infinity.
        terms: how many; None for 3.

    Raises:
        Refusal: see `series`.
    """
    found = series(variance, math.inf if lam is None else float(lam), TERMS if terms is None else terms)
    probabilities, points = found.corners()
    return Quantiles(torch.from_numpy(probabilities), torch.from_numpy(points))


def table(
    density: str,
    variance: float,
    lam: float | None = None,
    half_width_steps: int | None = None,
    terms: int | None = None,
) -> Quantiles:
    """Return the table of a density of X_corr by its name: ``nnls``, ``paper`` or ``series``.

    Args:
        density: its name.
        variance: sigma^2 of the normal variable.
        lam: of `correction` or of `series_quantiles`.
        half_width_steps: of `correction`.
        terms: of `series_quantiles`.

    Raises:
        Refusal: an unknown name, or a setting that has no meaning or is of another density.
    """
    if density == "series":
        if half_width_steps is not None:
            raise Refusal("half_width_steps is of a grid, and density = 'series' has none; leave it out.")
        return series_quantiles(variance, lam, terms)
    if density not in _DEFAULTS:
        known = (*_DEFAULTS, "series")
        raise Refusal(
            f"density = '{density}' is unknown; choose {', '.join(known)}.{nearest(density, known)}"
        )
    if terms is not None:
        raise Refusal(f"terms = {terms} is of density = 'series'; choose that one, or leave terms out.")
    return quantiles(correction(density, root(variance), lam, half_width_steps))


def inverse(u: Tensor, table: Quantiles) -> Tensor:
    """Return draws (C,), float64, from uniforms u (C,) in (0, 1), on the device of u."""
    probabilities, points = table.to(u.device)
    u = u.double()
    above = torch.searchsorted(probabilities, u, right=True).clamp_(1, len(points) - 1)
    low, high = probabilities[above - 1], probabilities[above]
    share = ((u - low) / (high - low)).clamp_(0.0, 1.0)  # beyond the ends if the masses do not sum to 1
    return torch.lerp(points[above - 1], points[above], share)


@piece
def inverted(u: Any, probabilities: Any, points: Any) -> Any:
    """Return the draw of one uniform u; see `inverse`."""
    low, high = 0, len(probabilities) - 1
    while high - low > 1:  # probabilities[low] <= u < probabilities[high], but at the ends
        middle = (low + high) // 2
        if probabilities[middle] <= u:
            low = middle
        else:
            high = middle
    share = (u - probabilities[low]) / (probabilities[high] - probabilities[low])
    return points[low] + min(max(share, 0.0), 1.0) * (points[high] - points[low])


def kolmogorov(normal: Tensor, u: Tensor, sigma: float) -> Tensor:
    """Return draws (C,) of X = sqrt(max(4 K^2 - sigma^2, 0)) Z, a correction that needs no table.

    A logistic variable is 2 K Z with K Kolmogorov-distributed and Z normal (Andrews & Mallows 1974,
    "Scale mixtures of normal distributions"), so N(0, sigma^2) + X is logistic but for 2 K < sigma.
    The distance of cdfs is 4.2e-5, 2.3e-4, 8.1e-4 and 2.1e-3 at sigma 0.8, 0.9, 1.0 and 1.1.

    Args:
        normal: Z (C,).
        u: uniforms (C,) in (0, 1), for K.
        sigma: standard deviation of the normal variable.

    Raises:
        Refusal: there is no correction for this sigma.
    """
    check_sigma(sigma)
    k = torch.from_numpy(special.kolmogi(u.double().cpu().numpy())).to(u.device)
    return (4 * k * k - sigma * sigma).clamp_(min=0.0).sqrt_() * normal
