"""Whether the draws of a dynamics are as wide as the posterior, by its gradients at them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mhrun.diagnostics.chains import SETTLED, diagnosis, some_coordinates
from mhrun.engine.diagnosis.sampled_gradients import SampledGradients

TOLERATED = 1.25  # times the variance: a pilot's step makes it 1.1
NARROW = 0.7  # likewise: a thermostat whose momenta are often redrawn makes it 0.8
_ERRORS = 3.0  # standard errors beyond that
# The largest error of a ratio that is too small: that of 100 draws of a narrow normal distribution
_PRECISE = 0.1
_ROTATED = 50  # parameters up to which principal directions are looked at
_LOOKED_AT = 50  # coordinates whose R-hat is
_DIVERGED, _FINITE = 1e3, 1e6  # a ratio that counts whatever its error, and the largest that is returned


def variance_ratio(sampled: SampledGradients) -> float | None:
    """Return by what factor the draws are too wide, in the direction where it is largest; None if none is beyond error.

    With U the negative log posterior, any density exp(-U/T) has E (u . (theta - a)) (u . grad U) = T along every unit
    vector u, by partial integration. Of a normal posterior and draws with other variances in its principal directions
    the mean over draws is T times the ratio of the variances. Steps that are too long raise it, and so does the noise
    of minibatch gradients, though not those data that no minibatch contained.

    Directions are the coordinates, and of up to 50 parameters the principal directions of the draws: those of one half
    of each chain are judged by the other half, as draws are too wide in what are their own widest directions. a is the
    mean of all draws; where chains are apart (R-hat above 1.1) that of the chain, as chains that have hardly left
    scattered starting points are not too wide.
    """
    products = _products(sampled)
    ratios = [ratio for each in products if (ratio := _beyond_error(each)) is not None]
    return min(max(ratios), _FINITE) if ratios else None


def least_variance_ratio(sampled: SampledGradients) -> float | None:
    """Return by what factor the draws are too narrow, in the direction where it is least; None if none is beyond error.

    Draws that begin anew at a mode, as in cycles that explore without noise, are narrow if they are taken before the
    chain has left it: R-hat and ESS look right, as all chains do the same. See `variance_ratio`. None for chains that
    are apart, which have not been everywhere yet.
    """
    if _are_apart(sampled.draws):
        return None
    ratios = [ratio for each in _products(sampled) if (ratio := _below_error(each)) is not None]
    return min(ratios) if ratios else None


def _products(sampled: SampledGradients) -> list[Tensor]:
    """Return (u . (theta - a)) (u . grad U) / T of each draw along some directions, each (C, S, K).

    None of them if draws or gradients are not finite, or a coordinate is constant.
    """
    draws = sampled.draws
    flat = draws.reshape(-1, draws.shape[-1])
    if not bool(flat.isfinite().all()) or not bool(sampled.grad.isfinite().all()):
        return []
    spread = flat.std(0)
    if not bool((spread > 0).all()):
        return []
    away = (draws - (draws.mean(1, keepdim=True) if _are_apart(draws) else flat.mean(0))) / spread
    grad = (-sampled.grad * spread / sampled.temperature).reshape(draws.shape)  # of U / T
    products = [away * grad]
    if 1 < flat.shape[1] <= _ROTATED:
        half = draws.shape[1] // 2
        halves = (slice(None, half), slice(half, None))
        directions = [_principal(away[:, part]) for part in halves]
        rotated = [
            (away[:, part] @ vectors) * (grad[:, part] @ vectors)
            for part, vectors in zip(halves, reversed(directions), strict=True)
        ]
        products.append(torch.cat(rotated, 1))
    return products


def _are_apart(draws: Tensor) -> bool:
    """Return whether the R-hat of any coordinate shows that the chains (C, S, D) have not settled."""
    rhats = (
        diagnosis(draws[..., place].numpy()).rhat for place in some_coordinates(draws.shape[-1], _LOOKED_AT)
    )
    return any(rhat > SETTLED for rhat in rhats)


def _beyond_error(products: Tensor) -> float | None:
    """Return the largest mean of products (C, S, D) if it is above 1.25 beyond its error, or far above; else None."""
    ratios = products.mean((0, 1))
    largest = int(ratios.argmax())
    ratio, series = float(ratios[largest]), products[..., largest]
    if ratio > _DIVERGED:  # one draw may dominate, and its error is as large
        return ratio
    if not ratio > TOLERATED:
        return None
    return ratio if ratio - TOLERATED > _ERRORS * _error(series) else None


def _below_error(products: Tensor) -> float | None:
    """Return the least mean of products (C, S, D) if it is known well and below 0.7 beyond its error; else None."""
    ratios = products.mean((0, 1))
    least = int(ratios.argmin())
    ratio = float(ratios[least])
    if not ratio < NARROW:
        return None
    error = _error(products[..., least])
    return ratio if error < _PRECISE and NARROW - ratio > _ERRORS * error else None


def _error(series: Tensor) -> float:
    """Return the standard error of the mean of a series (C, S)."""
    ess = min(diagnosis(series.numpy()).ess, series.numel())
    return float(series.std()) / math.sqrt(max(ess, 1.0))


def _principal(away: Tensor) -> Tensor:
    """Return the principal directions (D, D) of standardised draws (C, S, D), in columns."""
    flat = away.reshape(-1, away.shape[-1])
    vectors: Tensor = torch.linalg.eigh(flat.T @ flat / len(flat)).eigenvectors
    return vectors
