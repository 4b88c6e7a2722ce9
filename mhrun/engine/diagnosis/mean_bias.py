"""Bias of the means of the draws of a dynamics, by its step size."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.diagnostics.chains import diagnosis
from mhrun.engine.diagnosis.excess_variance import excess_of_noise, scale_of_dynamics
from mhrun.engine.diagnosis.sampled_gradients import SampledGradients
from mhrun.engine.method import Method
from mhrun.kernels import Unadjusted
from mhrun.models.parameters import coordinate_names

ERRORS = 4.5  # standard errors from which on a covariance counts, the largest of up to thousands
_TRIED = 8  # coordinates whose covariance is compared with its error, those of the largest biases
_OF_HALF = 0.5  # share of the bias that the draws of either half of the run must show: none by draws on their way alone


class MeanBias(NamedTuple):
    """Bias of the mean of a coordinate."""

    size: float  # in standard deviations of its draws
    name: str  # of the coordinate


class Gains(NamedTuple):
    """Relative errors of variances under a dynamics."""

    # e g, with g the dynamics' `bias.means`: e g H / 2 at the curvature H of the log posterior
    of_steps: float
    # By minibatch noise of the gradients, the mean over directions, and by a thermostat
    of_temperature: float
    thermostat: bool = False  # whether a thermostat cancels the mean of e g H / 2 over directions

    @property
    def cases(self) -> tuple[Gains, ...]:
        """These, and those of a thermostat that is faster than the parameters that govern others.

        It cancels the mean of e g H / 2 at each place, and nothing is left of what steps add if directions are alike.
        """
        fast = self._replace(of_steps=0.0, thermostat=False)
        return (self, fast) if self.thermostat else (self,)


def biases_of_means(draws: Tensor, height: Tensor, grad: Tensor, gains: Gains, temperature: float) -> Tensor:
    """Return the bias of the mean of each coordinate, to first order, in standard deviations of the draws (D,).

    With U the negative log posterior, steps of size e of SGLD sample exp(-U/T + e (|grad U|^2/T - 2 tr U'') / 4), to
    first order in e. The bias of E theta is the covariance of theta and that term; by partial integration it is

        -e cov(theta, |grad U|^2) / (4 T).

    It is 0 of a normal posterior. Where a parameter is the scale of many others, |grad U|^2 is large where the scale is
    small, and draws of the scale are too large: the others are too wide, by little each, and it follows them. Other
    dynamics have a multiple of it, their `bias.means`: for SGHMC the two agree on normal posteriors, and where a slow
    parameter governs fast ones. What adds the relative amount d to the temperature adds d cov(theta, U) / T: noise
    of gradients, if it is the same in all directions, and a thermostat, by the bias that it has in small steps and by
    minus the mean of e g H / 2 over directions and places; E |grad U|^2 = T tr H.

    Args:
        draws: (S, D).
        height: the log posterior at temperature 1 (S,).
        grad: its gradient (S, D) in the coordinates in which the dynamics moves.
        gains: of the dynamics.
        temperature: T.
    """
    away = draws - draws.mean(0)
    return away.T @ _term(height, grad, gains, temperature) / len(draws) / draws.std(0).clamp_min(1e-300)


def _term(height: Tensor, grad: Tensor, gains: Gains, temperature: float) -> Tensor:
    """Return the term (S,) whose covariances with coordinates are the biases of their means, centred."""
    square = grad.square().sum(1)
    of_temperature = gains.of_temperature
    if gains.thermostat:
        of_temperature -= gains.of_steps / 2 * float(square.mean()) / (temperature * grad.shape[1])
    term = -(gains.of_steps / 4 * square + of_temperature * height) / temperature
    return term - term.mean()


def largest_bias(
    draws: Tensor, height: Tensor, grad: Tensor, gains: Gains, temperature: float, errors: float = ERRORS
) -> tuple[float, int] | None:
    """Return the largest of `biases_of_means` that is beyond its error, and its coordinate; None if none is.

    Args:
        draws: (C, S, D).
        height: (C S,), see `biases_of_means`.
        grad: (C S, D), likewise.
        gains: likewise.
        temperature: likewise.
        errors: of how many standard errors it must be; those of independent draws as many as the coordinate's ESS.
    """
    flat = draws.reshape(-1, draws.shape[-1])
    if not all(bool(each.isfinite().all()) for each in (flat, height, grad)):
        return None
    biases = biases_of_means(flat, height, grad, gains, temperature)
    spread = float(_term(height, grad, gains, temperature).std())
    for place in biases.abs().argsort(descending=True)[:_TRIED].tolist():
        size, ess = float(biases[place]), diagnosis(draws[..., place].numpy()).ess
        if ess > 0 and abs(size) > errors * spread / math.sqrt(ess):  # not where it is NaN
            return size, place
    return None


def mean_bias(method: Method, sampled: SampledGradients) -> MeanBias | None:
    """Return the largest bias of the mean of a coordinate.

    Args:
        method: whose steps have ended.
        sampled: gradients at its draws.

    Returns:
        None if there is none beyond its error, and for a dynamics that does not declare `bias.means`.
    """
    kernel, target = method.kernel, method.target
    if not isinstance(kernel, Unadjusted) or kernel.dynamics.bias.means is None:
        return None
    draws, height, grad, temperature, size = sampled
    points = draws.reshape(-1, target.dim).to(device=target.device, dtype=method.dtype)
    scale = scale_of_dynamics(kernel)
    excess = excess_of_noise(method, points[:: len(points) // len(draws)], scale)
    of_noise = 0.0 if excess is None else excess.mean
    gains = Gains(
        size * kernel.dynamics.bias.means,
        of_noise + kernel.dynamics.bias.in_small_steps,
        kernel.dynamics.bias.thermostat,
    )
    grad = grad if scale is None else scale.pull(grad)
    found = [largest_bias(draws, height, grad, case, temperature) for case in gains.cases]
    likely = [(*each, case) for each, case in zip(found, gains.cases, strict=True) if each is not None]
    if not likely:
        return None
    bias, place, gains = max(likely, key=lambda each: abs(each[0]))
    half = torch.arange(draws.shape[1]).repeat(len(draws)) < draws.shape[1] // 2
    flat = draws.reshape(-1, target.dim)
    for part in (half, ~half):
        of_part = biases_of_means(flat[part], height[part], grad[part], gains, temperature)[place]
        if not float(of_part) / bias > _OF_HALF:
            return None
    return MeanBias(bias, coordinate_names(target.model)[place])
