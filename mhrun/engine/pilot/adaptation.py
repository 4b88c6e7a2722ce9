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
    tuner = _Tuner(method, temperature, key, QUARTER if open_length else None)
    if start.fallback is not None:
        sized = _sized(tuner, tuning, scale)
        if sized.fits:
            return sized
        again = derive_key(key, "fallback")
        other = adapt(method, start.fallback, temperature, again, open_length=open_length, known=known)
        return other._replace(tuning=with_evaluations_of(other.tuning, sized.tuning))
    adapted = _shaped(tuner, tuning, scale, known=known)
    if adapted.rounds and open_length and not adapted.scale.dense:
        adapted = adapted._replace(tuning=_lengthened(tuner, adapted.tuning, adapted.scale))
    return adapted


class _Tuner(NamedTuple):
    """Tunes the step size again, after a change of the scale or of the length of trajectories."""

    method: Method
    temperature: Tensor
    key: int
    length: float | None  # of trajectories; None: the kernel has their number of steps

    def again(self, tuning: Tuning, scale: Scale, name: str) -> Tuning:
        """Return a tuning that begins where another ended, with the evaluations of both; the name is of its key."""
        key = derive_key(self.key, name)
        tuned = tune(self.method, scale, tuning.theta, self.temperature, key, self.length)
        return with_evaluations_of(tuned, tuning)


def _shaped(tuner: _Tuner, tuning: Tuning, scale: Scale, *, known: bool) -> Adapted:
    """Change a scale by the covariance of the draws until it fits them, see `adapt`."""
    rounds = 0
    while True:
        assert tuning.draws is not None
        covariance = scaled_covariance(scale, tuning.draws, tuner.temperature, within=known)
        if not scale.dense:
            covariance = torch.diag(covariance.diagonal())
        fits = is_fitting(covariance, tuning.draws[..., 0].numel())
        if rounds == ROUNDS or ((known or rounds) and fits):
            return Adapted(tuning, scale, rounds, fits)
        share = share_of_draws(tuning.draws, dense=scale.dense)
        scale = _changed(scale, share * covariance, 1 - share, tuning.draws.mean((0, 1)))
        tuning = tuner.again(tuning, scale, f"round {rounds}")
        rounds += 1


def _sized(tuner: _Tuner, tuning: Tuning, scale: Scale) -> Adapted:
    """Change a dense scale in size until the median of the variances is about 1, and judge the directions of draws.

    Draws after a change are judged twice, as chains may still be on their way from the mode in the first.
    """
    rounds, is_resized = 0, False
    while True:
        assert tuning.draws is not None
        size = float(
            scaled_covariance(scale, tuning.draws, tuner.temperature, within=True).diagonal().median()
        )
        directions = scaled_covariance(scale, tuning.draws, tuner.temperature, within=True, on_sphere=True)
        fits = is_fitting(directions, tuning.draws[..., 0].numel())
        is_sized = 1 / _SIZED < size < _SIZED
        if rounds == ROUNDS or (is_sized and (fits or not is_resized)):
            return Adapted(tuning, scale, rounds, fits)
        is_resized = not is_sized
        scale = Scale(tuning.draws.mean((0, 1)), math.sqrt(size) * scale.factor)
        tuning = tuner.again(tuning, scale, f"size {rounds}")
        rounds += 1


def _lengthened(tuner: _Tuner, tuning: Tuning, scale: Scale) -> Tuning:
    """Return the tuning with trajectories as long as the slowest coordinate of a diagonal scale needs."""
    quarters = reach(tuning)
    for odd, least in _ODD.items():
        if quarters > least:
            return tuner._replace(length=odd * QUARTER).again(tuning, scale, "longer")
    return tuning


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
