"""Draws of trajectories judge the scale that a mode gives, and change it where it does not fit them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.defaults import gradients_of
from mhrun.engine.method import Method
from mhrun.engine.pilot.adaptation import Adapted, adapt, scaled_covariance, share_of_draws
from mhrun.engine.pilot.start import ScaledStart, unit_like
from mhrun.kernels import MetropolisHastings
from mhrun.pairing.full import Full
from mhrun.parts import AUTO
from mhrun.proposals.hamiltonian import HamiltonianProposal
from mhrun.random import derive_key
from mhrun.rules.metropolis import Metropolis
from mhrun.schedules.fixed import Fixed
from mhrun.schedules.plan import Plan

# Data on which trajectories judge a scale, at most. On the larger number they take minutes, and without them the chains
# of a model of groups in centred form begin where its spread is 0.
_MOST_DATA, _MOST_IF_FLAT = 10_000, 100_000


class JudgedStart(NamedTuple):
    """A start after draws have judged it."""

    start: ScaledStart  # the one before, with its doubt, if no scale came to fit the draws
    rounds: int  # in which the scale was changed; 0: it stays
    n_grad: int  # gradients of single data evaluated; the likelihoods come from the same passes


def allows_trajectories(method: Method, doubt: str) -> bool:
    """Return whether trajectories on all data can judge a scale: no noise, no surrogate, and not too many data.

    Up to 10,000 data, and up to 100,000 where the scale of the mode is of no use (the doubt "flat").
    """
    target = method.target
    most = _MOST_IF_FLAT if doubt == "flat" else _MOST_DATA
    noise = target.energy_noise or target.gradient_noise
    return not noise and target.surrogate is None and target.n <= most and gradients_of(target)


def judged_start(method: Method, start: ScaledStart, temperature: Tensor, key: int) -> JudgedStart:
    """Return the start whose scale fits draws of Hamiltonian Monte Carlo.

    Where directions are flat at the mode nothing is known, and chains begin at their first points with a scale of 1.

    Args:
        method: any, on a target that `allows_trajectories`.
        start: with a scale, which is kept if it fits, or if none comes to fit, but for the neck of a funnel.
        temperature: of each chain (C,).
        key: of the random numbers.
    """
    assert start.scale is not None
    kernel = MetropolisHastings(HamiltonianProposal(), Full(), Metropolis())
    hmc = with_open_step(replace(method, kernel=kernel, monitor=None), temperature)
    known = start.doubt != "flat"
    begun = start if known else ScaledStart(method.first_points(), unit_like(start.scale))
    assert begun.scale is not None
    adapted = adapt(hmc, begun, temperature, derive_key(key, "trajectories"), open_length=True, known=known)
    n_grad = adapted.tuning.facts["n_grad"]
    if not adapted.fits and not start.in_neck:  # from the neck of a funnel any other scale is better
        return JudgedStart(start, 0, n_grad)
    draws = adapted.tuning.draws
    assert draws is not None
    draws = draws[temperature.cpu() == temperature.min().cpu()]
    if adapted.scale is begun.scale:
        return JudgedStart(begun._replace(doubt=None, draws=draws), 0, n_grad)
    curvature = _curvature_of(adapted, temperature, within=known)
    condition = adapted.scale.condition
    # Data and the posterior are as they were; the scale is another.
    changed = ScaledStart(
        adapted.tuning.theta,
        adapted.scale,
        curvature,
        condition,
        is_skewed=start.is_skewed,
        whole=start.whole,
        draws=draws,
    )
    return JudgedStart(changed, adapted.rounds, n_grad)


def with_open_step(method: Method, temperature: Tensor) -> Method:
    """Return the method with a step size that is to be tuned, at these temperatures (C,)."""
    step_size = Fixed(step_size=AUTO, temperature=temperature.tolist())
    return replace(method, plan=Plan({"step_size": step_size}, len(temperature), 0, method.shape.total))


def _curvature_of(adapted: Adapted, temperature: Tensor, *, within: bool) -> Tensor:
    """Return the inverse covariance (D, D) of draws in scaled coordinates, which is shrunk towards the identity."""
    draws = adapted.tuning.draws
    assert draws is not None
    covariance = scaled_covariance(adapted.scale, draws, temperature, within=within)
    share = share_of_draws(draws, dense=True)
    return torch.linalg.inv(
        share * covariance + (1 - share) * torch.eye(len(covariance), dtype=torch.float64)
    )
