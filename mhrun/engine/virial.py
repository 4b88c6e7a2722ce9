"""Whether the draws of a dynamics are as wide as the posterior is, by its gradients at them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mhrun.diagnostics.chains import diagnosis
from mhrun.engine.sampled_gradients import SampledGradients

TOLERATED = 1.25  # times the variance: a pilot's step makes it 1.1
_ERRORS = 3.0  # standard errors beyond that
_ROTATED = 50  # parameters up to which principal directions are looked at, with ten draws for each
_FINITE = 1e6  # a larger one has diverged


def variance_ratio(sampled: SampledGradients) -> float | None:
    """Return by what factor the draws are too wide, in the direction where it is largest; None if none is beyond error.

    With U the negative log posterior, any density exp(-U/T) has E (u . (theta - a)) (u . grad U) = T along every unit
    vector u, by partial integration. Of a normal posterior and draws with other variances in its principal directions
    the mean over draws is T times the ratio of the variances. Steps that are too long raise it, and so does the noise
    of minibatch gradients, though not those data that no minibatch contained. a is the mean of the draws of a chain:
    chains that have hardly left scattered starting points are not too wide.
    """
    draws = sampled.draws.reshape(-1, sampled.draws.shape[-1])
    if not bool(draws.isfinite().all()) or not bool(sampled.grad.isfinite().all()):
        return None
    spread = draws.std(0)
    if not bool((spread > 0).all()):
        return None
    within = sampled.draws - sampled.draws.mean(1, keepdim=True)
    away = within.reshape(draws.shape) / spread
    grad = -sampled.grad * spread / sampled.temperature  # of U / T
    if 1 < away.shape[1] <= min(_ROTATED, len(away) // 10):
        directions = _principal(away)
        away, grad = away @ directions, grad @ directions
    products = away * grad  # (C S, D)
    ratios = products.mean(0)
    largest = int(ratios.argmax())
    ratio = float(ratios[largest])
    if not ratio > TOLERATED:
        return None
    series = products[:, largest].reshape(sampled.draws.shape[:2])
    ess = min(diagnosis(series.numpy()).ess, series.numel())
    if not ratio - TOLERATED > _ERRORS * float(series.std()) / math.sqrt(max(ess, 1.0)):
        return None
    return min(ratio, _FINITE)


def _principal(away: Tensor) -> Tensor:
    """Return the principal directions (D, D) of standardised draws, in columns."""
    vectors: Tensor = torch.linalg.eigh(away.T @ away / len(away)).eigenvectors
    return vectors
