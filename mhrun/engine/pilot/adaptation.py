"""The scale of trajectories from draws, where the curvature at a mode does not fit the posterior."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.method import Method
from mhrun.engine.pilot.acceptance import Tuning, tune
from mhrun.kernels.preconditioned import Scale
from mhrun.random import derive_key

QUARTER = math.pi / 2  # a quarter of the period of a standard normal target
ROUNDS = 4
_FITS = 3.0  # largest ratio of a variance to what the scale makes of it
_AUTOCORRELATION = 4  # draws that count as one in the estimate of a covariance


class Adapted(NamedTuple):
    """A tuned step size, and the scale that it belongs to."""

    tuning: Tuning
    scale: Scale
    rounds: int  # in which the scale was changed
    fits: bool  # whether the last draws have the variances that the scale makes of them


def adapt(
    method: Method,
    scale: Scale,
    theta: Tensor,
    temperature: Tensor,
    key: int,
    *,
    length: float | None,
    known: bool,
) -> Adapted:
    """Tune the step size, and take the scale from the draws until it fits them, in at most `ROUNDS` rounds.

    In scaled coordinates every variance should be T. If one, in any direction for a dense scale, is off by more than a
    factor of 3, the scale is changed by their covariance, w C + (1 - w) I with w = s / (s + D) and s a quarter of the
    number of draws, and the step size is tuned again. Without a curvature to begin from it is always changed, and the
    first trajectories have the number of steps that the kernel has.

    Args:
        method: whose proposal follows trajectories.
        scale: to begin with.
        theta: where chains begin (C, D).
        temperature: temperature of each chain (C,).
        key: of the random numbers.
        length: of trajectories at the known curvature, if their number of steps is open; after a change it is pi/2.
        known: whether chains begin at modes, whose curvature the scale has. Covariances are then those within the
            chains, else those of all draws.
    """
    tuning = tune(method, scale, theta, temperature, key, length if known else None)
    for k in range(ROUNDS + 1):
        assert tuning.draws is not None
        covariance = scaled_covariance(scale, tuning.draws, temperature, within=known)
        if not scale.dense:
            covariance = torch.diag(covariance.diagonal())
        eigenvalues = torch.linalg.eigvalsh(covariance)
        fits = bool(((eigenvalues < _FITS) & (eigenvalues > 1 / _FITS)).all())
        if k == ROUNDS or ((known or k) and fits):
            break
        share = share_of_draws(tuning.draws)
        scale = _changed(scale, share * covariance, 1 - share, tuning.draws.mean((0, 1)))
        round_key = derive_key(key, f"round {k}")
        tuned = tune(method, scale, tuning.theta, temperature, round_key, None if length is None else QUARTER)
        facts = tuned.facts | {name: tuned.facts[name] + tuning.facts[name] for name in ("n_lik", "n_grad")}
        tuning = tuned._replace(facts=facts)
    return Adapted(tuning, scale, k, fits)


def scaled_covariance(scale: Scale, draws: Tensor, temperature: Tensor, *, within: bool) -> Tensor:
    """Return the covariance (D, D) of draws (C, S, D) in scaled coordinates, at T = 1.

    It is about the mean of each chain (`within`) or of all.
    """
    phi = scale.to_phi(draws) / temperature.sqrt().cpu()[:, None, None]
    phi = phi - (phi.mean(1, keepdim=True) if within else phi.mean((0, 1)))
    flat = phi.reshape(-1, phi.shape[-1])
    return flat.T @ flat / len(flat)


def share_of_draws(draws: Tensor) -> float:
    """Return w = s / (s + D), the weight of the covariance of draws (C, S, D) beside the identity; s is C S / 4."""
    effective = draws[..., 0].numel() / _AUTOCORRELATION
    return effective / (effective + draws.shape[-1])


def _changed(scale: Scale, covariance: Tensor, ridge: float, center: Tensor) -> Scale:
    """Return the scale S R, with R R^T = covariance + ridge I."""
    root = torch.linalg.cholesky(covariance + ridge * torch.eye(len(covariance), dtype=torch.float64))
    return Scale(center, scale.factor @ root if scale.dense else scale.factor * root.diagonal())
