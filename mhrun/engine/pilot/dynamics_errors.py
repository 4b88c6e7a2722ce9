"""Errors of a dynamics' variances and means by its step size, from the curvature, gradient noise and draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.diagnosis.gradient_noise import POINTS, largest_eigenvalue, of_minibatch, root_of_covariance
from mhrun.engine.diagnosis.mean_bias import Gains, MeanBias, largest_bias
from mhrun.engine.diagnosis.sampled_gradients import posterior_at
from mhrun.engine.landscape.curvature import largest_curvature
from mhrun.engine.landscape.surface import Surface
from mhrun.engine.method import Method
from mhrun.engine.pilot.start import ScaledStart
from mhrun.kernels import Unadjusted
from mhrun.models.parameters import coordinate_names, parameters_of
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.types.scale import Scale

_TAKEN_OFF = 0.25  # most of the temperature that a known gradient noise may make up
VARIANCE_ERROR = 0.1  # relative error of the variance that the step size of a dynamics is chosen for
MEAN_ERROR = 0.15  # likewise of means, in posterior standard deviations, where draws show it
_JUDGED = 1_000  # of these draws, at most
# Standard errors from which on the shift of a mean counts: draws that judge a scale may be worth only twenty
# independent ones, and a shorter step does little harm.
_ERRORS = 3.0
# Standard deviations from the mode up to which the mean curvature is looked at, by what it must be larger than at the
# mode, and parameters up to which each direction has two gradients.
_AWAY, _STEEPER, _DIRECTIONS = 2.0, 1.5, 50
# Of a minibatch of gradients that the pilot chooses: n / 5 between the first two; with a control variate the least, as
# the noise of its gradients grows with n as the curvature does, or as many as make noise add no more than the steps do.
_LEAST_M, _MOST_M, _MOST_WITH_SURROGATE = 100, 5_000, 20_000
# Passes over all data for the noise of a control variate, each with other points, and the numbers of gradients and of
# products of their covariance, at most: the noise of a datum grows with the squared distance from the mode.
_PASSES, _NUMBERS, _PRODUCTS = 8, 1 << 25, 1 << 33


class ErrorRates(NamedTuple):
    """Twice the relative error of the variance per unit of the step size, in the direction in which it is largest."""

    error: float  # lambda_max(b H + c V / T)
    of_the_step: float  # b lambda_max(H)
    stability_bound: float  # 2 / lambda_max(H)
    largest_step: float  # at which a known noise is small enough to be taken off
    of_noise: float  # c V / T, the mean over directions

    def steeper(self, times: float) -> ErrorRates:
        """Return the rates where the curvature is so many times as large."""
        more = (times - 1) * self.of_the_step
        return self._replace(
            error=self.error + more,
            of_the_step=self.of_the_step + more,
            stability_bound=self.stability_bound / times,
        )


class ErrorsByStep(NamedTuple):
    """What is known of the errors of a dynamics, by its step size."""

    rates: ErrorRates  # of the variance
    steepness: float  # the curvature on the steep side, in units of that at the mode
    stable_thermostat: float  # the step size up to which its thermostat is stable
    judged: _Judged | None  # draws that show errors of means
    longest_for_means: float  # the step size at which a mean is off by `MEAN_ERROR`; infinite if none is off

    @property
    def longest_step(self) -> float:
        """The longest step size with tolerable errors."""
        for_variance = 2 * VARIANCE_ERROR / self.rates.error
        return min(for_variance, self.rates.largest_step, self.stable_thermostat, self.longest_for_means)


class _Judged(NamedTuple):
    """Draws of the posterior, from which the shifts of means are known."""

    draws: Tensor  # (C, S, D)
    height: Tensor  # (C S,), see `mhrun.engine.diagnosis.mean_bias.largest_bias`
    grad: Tensor  # (C S, D), the gradient there
    gains: Gains  # per unit of the step size, but for the bias of a thermostat
    bias: float  # of a thermostat
    temperature: float
    names: Sequence[str]  # of coordinates

    def shift(self, step_size: float, *, of_steps_alone: bool = False) -> MeanBias | None:
        """Return the largest shift of the mean of a coordinate, or None if none is beyond its error."""
        gains = self.gains._replace(
            of_steps=step_size * self.gains.of_steps,
            of_temperature=step_size * self.gains.of_temperature + (0.0 if of_steps_alone else self.bias),
        )
        found = [
            largest_bias(self.draws, self.height, self.grad, case, self.temperature, _ERRORS)
            for case in gains.cases
        ]
        size, place = max((each for each in found if each is not None), key=_size, default=(0.0, -1))
        return MeanBias(size, self.names[place]) if size else None


def minibatch_and_rates(
    method: Method, surface: Surface, start: ScaledStart, temperature: float
) -> tuple[int | None, ErrorRates]:
    """Return the minibatch size, None if it is not open, and the rates of errors with it or with the given one."""
    assert isinstance(method.kernel, Unadjusted)
    target, m = method.target, open_minibatch(method)
    size = m or method.kernel.m or target.n
    root = _root_of_noise(method, surface, start, temperature, size)
    rates = _error_rates(method, surface, start, temperature, size, root)
    if m is None or target.surrogate is None or (balanced := _balanced(m, rates, target.n)) <= m:
        return m, rates
    return balanced, _error_rates(method, surface, start, temperature, balanced, root)


def open_minibatch(method: Method) -> int | None:
    """Return the least minibatch size that the pilot chooses; None if the size is given."""
    assert isinstance(method.kernel, Unadjusted)
    target = method.target
    if not method.kernel.m_is_open:
        return None
    if target.surrogate is not None:
        return min(target.n, _LEAST_M)
    return min(target.n, max(_LEAST_M, min(_MOST_M, target.n // 5)))


def errors_by_step(
    method: Method, surface: Surface, start: ScaledStart, temperature: float, rates: ErrorRates
) -> ErrorsByStep:
    """Return what is known of the errors of a dynamics.

    Where its step size is open and it is overdamped, the rates are those of the steep side.
    """
    assert isinstance(method.kernel, Unadjusted)
    dynamics, steepness = method.kernel.dynamics, 1.0
    if method.plan.is_open and dynamics.overdamped:
        steepness = _steepness(surface, start, temperature)
        rates = rates.steeper(steepness)
    judged = _judged(method, surface, start, temperature, rates)
    rate = None if judged is None else judged.shift(1.0, of_steps_alone=True)
    longest_for_means = math.inf if rate is None else MEAN_ERROR / abs(rate.size)
    hottest = float(method.plan.collected_controls.noise_temperature.max())
    stable_thermostat = dynamics.largest_step(method.target.dim, hottest)
    return ErrorsByStep(rates, steepness, stable_thermostat, judged, longest_for_means)


def _steepness(surface: Surface, start: ScaledStart, temperature: float) -> float:
    """Return how many times the largest curvature on steep sides is that at the mode; 1 if less than 1.5 times.

    A probability of an event that was hardly ever seen has a logit whose log density falls like an exponential function
    on one side. Steps for the curvature at the mode are too long there: the variance of the probability, which is large
    there, was 1.6 times too large with no event in 50 data and a prior Beta(1/2, 1/2), where 1.1 was expected. That of
    the logit itself was 1.05 times too large, so that this is for models whose parameters are constrained.

    It is the mean curvature up to two standard deviations from the mode along the axes of the scaled coordinates: on
    the whole that at one standard deviation, with which errors of variances are near 10 %.
    """
    scale, curvature = start.scale, start.curvature
    parameters = parameters_of(surface.target.model)
    if parameters is None or parameters.is_plain:
        return 1.0
    if scale is None or curvature is None or len(curvature) > _DIRECTIONS:
        return 1.0
    axes = torch.eye(len(curvature), dtype=torch.float64)
    axes = torch.cat([axes, -axes])
    distance = _AWAY * temperature**0.5
    points = scale.to_theta(torch.cat([torch.zeros_like(axes[:1]), distance * axes])).to(start.theta)
    _, grad = (surface.of_all_data() if start.whole else surface).value_and_grad(points)
    grad = scale.pull(grad.cpu())
    away = ((grad[0] - grad[1:]) * axes).sum(1) / distance
    away = away[away.isfinite()]
    if not len(away):
        return 1.0
    largest = float(away.max() / torch.linalg.eigvalsh(curvature.double()).max())
    return largest if largest > _STEEPER else 1.0


def _root_of_noise(
    method: Method, surface: Surface, start: ScaledStart, temperature: float, m: int
) -> Tensor | None:
    """Return R (K, D), with R^T R the covariance of gradients of single data; None if gradients of m have no noise."""
    assert isinstance(method.kernel, Unadjusted)
    target, scale = method.target, start.scale
    if method.kernel.dynamics.known_noise or target.n == 1 or m >= target.n:
        return None
    points, passes = start.theta[:1] if scale is None else scale.center.to(start.theta)[None], 1
    is_whole = start.whole
    if target.surrogate is not None:
        # Its noise is that of the data for which it is worst: the few with a rare value of a category, for example.
        affordable = min(_NUMBERS // (target.n * target.dim), _PRODUCTS // (target.n * target.dim**2))
        is_whole = is_whole or affordable > 0
        passes = max(1, min(_PASSES, affordable))
        points = _around(start.theta, scale, temperature, method.seed, POINTS * passes)
    return root_of_covariance(surface.of_all_data() if is_whole else surface, points, scale, POINTS)


def _error_rates(
    method: Method, surface: Surface, start: ScaledStart, temperature: float, m: int, root: Tensor | None
) -> ErrorRates:
    assert isinstance(method.kernel, Unadjusted)
    target, dynamics, scale = method.target, method.kernel.dynamics, start.scale
    # A known noise is believed: an estimate of V - known would be dominated by its error.
    known, isotropic = dynamics.known_noise or 0.0, target.gradient_noise
    isotropic = 0.0 if known else isotropic
    share = 0.0 if root is None else of_minibatch(target, m)
    root = torch.zeros(1, target.dim, dtype=torch.float64) if root is None else root
    gain = (dynamics.bias.noise or 0.0) / temperature
    squares = 1.0 if scale is None else float(scale.metric.diagonal().mean())
    average = share * float(root.square().sum()) / target.dim + isotropic * squares
    if start.curvature is not None:
        curvature = start.curvature.double()
        metric = torch.eye(target.dim, dtype=torch.float64) if scale is None else scale.metric
        total = dynamics.bias.steps * curvature + gain * (share * root.T @ root + isotropic * metric)
        error = float(torch.linalg.eigvalsh(total).max())
        largest = float(torch.linalg.eigvalsh(curvature).max())
    else:
        place = start.theta[0] if scale is None else scale.center.to(start.theta)
        largest = largest_curvature(surface, place)
        noise = share * largest_eigenvalue(root) + isotropic
        error = dynamics.bias.steps * largest + gain * noise
    return ErrorRates(
        error,
        dynamics.bias.steps * largest,
        2 / largest if largest > 0 else math.inf,
        2 * _TAKEN_OFF / (gain * known) if known else math.inf,
        gain * average,
    )


def _size(found: tuple[float, int]) -> float:
    return abs(found[0])


def _judged(
    method: Method, surface: Surface, start: ScaledStart, temperature: float, rates: ErrorRates
) -> _Judged | None:
    """Return the draws that judged the scale with their gradients; None without."""
    assert isinstance(method.kernel, Unadjusted)
    dynamics, scale, draws = method.kernel.dynamics, start.scale, start.draws
    if draws is None or dynamics.bias.means is None:
        return None
    draws = draws[:, :: max(1, math.ceil(draws[..., 0].numel() / _JUDGED))]
    points = draws.reshape(-1, draws.shape[-1]).to(start.theta)
    height, grad = posterior_at(method.target, points, temperature)
    surface.n_grad += len(points) * method.target.n
    noise = 0.0 if dynamics.corrects_noise else rates.of_noise / 2
    gains = Gains(dynamics.bias.means, noise, dynamics.bias.thermostat)
    grad = grad if scale is None else scale.pull(grad)
    names = coordinate_names(method.target.model)
    return _Judged(draws, height, grad, gains, dynamics.bias.in_small_steps, temperature, names)


def _balanced(m: int, rates: ErrorRates, n: int) -> int:
    """Return the minibatch size at which noise adds as much to the variance as the steps do, at most 20,000.

    An effective draw takes twice as many evaluations as with small minibatches, and far fewer steps.
    """
    wanted = m * (rates.error - rates.of_the_step) / rates.of_the_step if rates.of_the_step > 0 else m
    return min(n, _MOST_WITH_SURROGATE, math.ceil(wanted)) if math.isfinite(wanted) else m


def _around(theta: Tensor, scale: Scale | None, temperature: float, seed: int, count: int) -> Tensor:
    """Return points (P, D) one standard deviation about the mode: a control variate has no noise at the mode itself."""
    if scale is None:
        return theta[:POINTS]
    streams = Streams(derive_key(seed, "noise"), count, theta.device)
    z = Draws(streams, 0).normal(Purpose.INIT, theta.shape[1])
    return scale.to_theta(temperature**0.5 * z).to(theta)
