"""The scale of trajectories from draws, where the curvature at a mode does not fit the posterior."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.method import Method
from mhrun.engine.pilot.acceptance import Tuning, tune
from mhrun.engine.pilot.chains import TUNED
from mhrun.engine.pilot.start import ScaledStart
from mhrun.random import derive_key
from mhrun.types.scale import Scale

QUARTER = math.pi / 2  # a quarter of the period of a standard normal target
ROUNDS = 4
# Odd numbers of quarters of a period, and how many the slowest coordinate needs for them: after two, half a period,
# all others would be opposite to where they began, at the same distance from their means.
_ODD = {5: 4.0, 3: 1.6}
_SLOWEST = 0.995  # the largest cosine
_FITS = 3.0  # largest ratio of a variance to what the scale makes of it
# The same of the variance in any direction: how far it may be beyond those of independent draws from N(0, I)
_CHANCE = 1.5
_SIZED = 1.5  # largest ratio of the median variance to 1 at which the shape of a dense scale is judged
_DIAGONAL = 5.0  # draws that the identity counts as in the estimate of a single variance
_AUTOCORRELATION = 4  # draws that count as one in the estimate of a covariance


class Adapted(NamedTuple):
    """A tuned step size, and the scale that it belongs to."""

    tuning: Tuning
    scale: Scale
    rounds: int  # in which the scale was changed
    fits: bool  # whether the last draws have the variances that the scale makes of them


def adapt(
    method: Method, start: ScaledStart, temperature: Tensor, key: int, *, open_length: bool, known: bool
) -> Adapted:
    """Tune the step size, and take the scale from the draws until it fits them, in at most `ROUNDS` rounds.

    In scaled coordinates every variance should be T. If one, in any direction for a dense scale, is off by more than a
    factor of 3, and by more than the error of so many draws, the scale is changed by their covariance,
    w C + (1 - w) I with w = s / (s + k) and s a quarter of the number of draws, and the step size is tuned again; k is
    D, and 5 for the variances of a diagonal scale, each of which has its own draws. Without a curvature to begin from
    it is always changed, and the first trajectories have the number of steps that the kernel has.

    The covariance of many parameters needs many draws. If the start has a fallback, a dense scale is therefore changed
    in size alone, by the median of the variances, until that is within a factor of 1.5, and gives way to the fallback
    if the directions of its draws are not those of a sphere then: of a Student t with 3 degrees of freedom in 60
    dimensions all variances are 63 times those at the mode.

    If their number of steps is open, trajectories have a quarter of the longest period at the known curvature; after a
    change of the scale the length pi/2, and with a diagonal one as many times that as the slowest coordinate needs, see
    `reach`.

    Args:
        method: whose proposal follows trajectories.
        start: with a scale.
        temperature: temperature of each chain (C,).
        key: of the random numbers.
        open_length: whether the number of steps of a trajectory is open.
        known: whether chains begin at modes, whose curvature the scale has. Covariances are then those within the
            chains, else those of all draws.
    """
    scale = start.scale
    assert scale is not None
    length = quarter_period(start.curvature) if open_length else None
    tuning = tune(method, scale, start.theta, temperature, key, length if known else None)
    if start.fallback is not None:
        sized = _sized(method, scale, tuning, temperature, key, None if length is None else QUARTER)
        if sized.fits:
            return sized
        again = derive_key(key, "fallback")
        other = adapt(method, start.fallback, temperature, again, open_length=open_length, known=known)
        return other._replace(tuning=with_evaluations_of(other.tuning, sized.tuning))
    for k in range(ROUNDS + 1):
        assert tuning.draws is not None
        covariance = scaled_covariance(scale, tuning.draws, temperature, within=known)
        if not scale.dense:
            covariance = torch.diag(covariance.diagonal())
        fits = is_fitting(covariance, tuning.draws[..., 0].numel())
        if k == ROUNDS or ((known or k) and fits):
            break
        share = share_of_draws(tuning.draws, dense=scale.dense)
        scale = _changed(scale, share * covariance, 1 - share, tuning.draws.mean((0, 1)))
        round_key = derive_key(key, f"round {k}")
        tuned = tune(method, scale, tuning.theta, temperature, round_key, None if length is None else QUARTER)
        tuning = with_evaluations_of(tuned, tuning)
    if k and length is not None and not scale.dense:
        quarters = reach(tuning)
        for odd, least in _ODD.items():
            if quarters > least:
                again = derive_key(key, "longer")
                tuned = tune(method, scale, tuning.theta, temperature, again, odd * QUARTER)
                tuning = with_evaluations_of(tuned, tuning)
                break
    return Adapted(tuning, scale, k, fits)


def _sized(
    method: Method, scale: Scale, tuning: Tuning, temperature: Tensor, key: int, length: float | None
) -> Adapted:
    """Change a dense scale in size until the median of the variances is about 1, and judge the directions of draws.

    Draws after a change are judged twice, as chains may still be on their way from the mode in the first.
    """
    is_resized = False
    for k in range(ROUNDS + 1):
        assert tuning.draws is not None
        size = float(scaled_covariance(scale, tuning.draws, temperature, within=True).diagonal().median())
        directions = scaled_covariance(scale, tuning.draws, temperature, within=True, on_sphere=True)
        fits = is_fitting(directions, tuning.draws[..., 0].numel())
        is_sized = 1 / _SIZED < size < _SIZED
        if k == ROUNDS or (is_sized and (fits or not is_resized)):
            break
        is_resized = not is_sized
        scale = Scale(tuning.draws.mean((0, 1)), math.sqrt(size) * scale.factor)
        tuned = tune(method, scale, tuning.theta, temperature, derive_key(key, f"size {k}"), length)
        tuning = with_evaluations_of(tuned, tuning)
    return Adapted(tuning, scale, k, fits)


def quarter_period(curvature: Tensor | None) -> float:
    """Return a quarter of the longest period, from the curvature (D, D) in the coordinates that chains move in."""
    least = 1.0 if curvature is None else float(torch.linalg.eigvalsh(curvature.double()).min())
    return QUARTER * max(least, 1e-300) ** -0.5


def is_fitting(covariance: Tensor, draws: int) -> bool:
    """Return whether a covariance (D, D) of so many draws in scaled coordinates is that of variances of about 1.

    If all are 1, and two draws count as one, its eigenvalues are within (1 -+ sqrt(2 D / draws))^2, the limits of
    Marchenko and Pastur: of 552 draws of a pilot in 300 dimensions they were from 0.03 to 3.8.
    """
    eigenvalues, variances = torch.linalg.eigvalsh(covariance), covariance.diagonal()
    error = math.sqrt(2 * len(covariance) / draws)
    least = min(1 / _FITS, (1 - error) ** 2 / _CHANCE) if error < 1 else -math.inf
    largest = max(_FITS, (1 + error) ** 2 * _CHANCE)
    within = (eigenvalues > least) & (eigenvalues < largest)
    return bool((within & (variances > 1 / _FITS) & (variances < _FITS)).all())


def with_evaluations_of(tuning: Tuning, before: Tuning) -> Tuning:
    """Return a tuning with the evaluations of an earlier one added."""
    now, then = tuning.facts, before.facts
    n_lik, n_grad = now["n_lik"] + then["n_lik"], now["n_grad"] + then["n_grad"]
    return tuning._replace(facts={**now, "n_lik": n_lik, "n_grad": n_grad})


def reach(tuning: Tuning) -> float:
    """Return how many quarters of a period the slowest coordinate needs in coordinates with a diagonal scale.

    Variances are 1 in them, but correlations leave directions that are wider. A trajectory of length l turns a normal
    coordinate of standard deviation s by an angle l / s, so that two draws of it have the correlation cos(l / s), and
    1 - a + a cos(l / s) at an acceptance rate a. The largest correlation of neighbouring draws gives s.
    """
    draws = tuning.draws
    assert draws is not None
    assert tuning.leapfrog_steps is not None
    deviations = draws - draws.mean(1, keepdim=True)
    products = (deviations[:, 1:] * deviations[:, :-1]).sum((0, 1))
    correlation = float((products / deviations.square().sum((0, 1)).clamp_min(1e-300)).max())
    accepted = max(0.1, float(tuning.facts["acceptance_found"]))
    cosine = min(max((correlation - 1 + accepted) / accepted, 0.0), _SLOWEST)
    length = min(TUNED, tuning.leapfrog_steps) * float(tuning.step_size.mean())
    return length / math.acos(cosine)


def scaled_covariance(
    scale: Scale, draws: Tensor, temperature: Tensor, *, within: bool, on_sphere: bool = False
) -> Tensor:
    """Return the covariance (D, D) of draws (C, S, D) in scaled coordinates, at T = 1.

    It is about the mean of each chain (`within`) or of all. With `on_sphere` each draw is moved to the distance
    sqrt(D) of the mean: a covariance of directions, which is I of every density that depends on the distance alone.
    """
    phi = scale.to_phi(draws) / temperature.sqrt().cpu()[:, None, None]
    phi = phi - (phi.mean(1, keepdim=True) if within else phi.mean((0, 1)))
    flat = phi.reshape(-1, phi.shape[-1])
    if on_sphere:
        flat = flat * (math.sqrt(flat.shape[-1]) / flat.norm(dim=-1, keepdim=True).clamp_min(1e-300))
    return flat.T @ flat / len(flat)


def share_of_draws(draws: Tensor, *, dense: bool) -> float:
    """Return w = s / (s + k), the weight of the covariance of draws (C, S, D) beside the identity; s is C S / 4.

    k is D for a matrix, and 5 for its diagonal alone, as in Stan.
    """
    effective = draws[..., 0].numel() / _AUTOCORRELATION
    return effective / (effective + (draws.shape[-1] if dense else _DIAGONAL))


def _changed(scale: Scale, covariance: Tensor, ridge: float, center: Tensor) -> Scale:
    """Return the scale S R, with R R^T = covariance + ridge I."""
    root = torch.linalg.cholesky(covariance + ridge * torch.eye(len(covariance), dtype=torch.float64))
    return Scale(center, scale.factor @ root if scale.dense else scale.factor * root.diagonal())
