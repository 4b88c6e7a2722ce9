"""The step size and the minibatch size of a dynamics, from the curvature of the posterior and its gradients' noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.curvature import largest_curvature
from mhrun.engine.diagnosis.gradient_noise import (
    POINTS,
    largest_eigenvalue,
    of_minibatch,
    root_of_covariance,
)
from mhrun.engine.diagnosis.mean_bias import Gains, MeanBias, largest_bias
from mhrun.engine.diagnosis.sampled_gradients import posterior_at
from mhrun.engine.method import Method
from mhrun.engine.pilot.effective_draws import expected_draws, in_words
from mhrun.engine.pilot.start import ScaledStart
from mhrun.engine.pilot.trial import Trials, tried
from mhrun.engine.surface import Surface
from mhrun.errors import UserError
from mhrun.kernels import Unadjusted
from mhrun.models.parameters import coordinate_names, parameters_of
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.store.pilot_facts import PilotFacts
from mhrun.target import Target
from mhrun.types.scale import Scale

_TAKEN_OFF = 0.25  # most of the temperature that a known gradient noise may make up
_VARIANCE_ERROR = 0.1  # relative error of the variance that the step size of a dynamics is chosen for
_MEAN_ERROR = (
    0.15  # likewise of means, in posterior standard deviations, where draws are at hand that show it
)
_JUDGED = 1_000  # draws that show it, at most
_ERRORS = (
    3.0  # from which on it counts: those of a scale may be worth twenty, and a shorter step does little harm
)
_SHOWN = 0.05  # of the same unit, from which on it is said
# Standard deviations from the mode up to which the mean curvature is looked at, by what it must be larger than at the
# mode, and parameters up to which each direction has two gradients.
_AWAY, _STEEPER, _DIRECTIONS = 2.0, 1.5, 50
# Of a minibatch of gradients that the pilot chooses: n / 5 between the first two; with a control variate the least, as
# the noise of its gradients grows with n as the curvature does, or as many as make noise add no more than the steps do.
_LEAST_M, _MOST_M, _MOST_WITH_SURROGATE = 100, 5_000, 20_000


class DynamicsStep(NamedTuple):
    """The step size and the minibatch size of a dynamics."""

    step_size: Tensor  # (1,), or of each chain (C,)
    m: int | None  # the minibatch size, if it was open
    facts: PilotFacts  # what is expected of them


def step_of_dynamics(
    method: Method, surface: Surface, start: ScaledStart, temperatures: Tensor
) -> DynamicsStep:
    """Return the step size of a dynamics and its minibatch size, if that is open.

    On a quadratic posterior of curvature H with gradient noise of covariance V, the variance is too large by the
    relative error e (b H + c V / T) / 2, with b and c the dynamics' `bias.steps` and `bias.noise`. An open step
    size e makes its largest eigenvalue 10 %: at most a tenth of the stability bound 2 / lambda_max(H). For an
    overdamped dynamics and constrained parameters H is the mean curvature on the steep side, if that is much larger
    than at the mode, see `_steepness`. Of a step size that is given the error is in `facts`. Where draws judged the
    scale the step is shorter if the mean of a coordinate would be off by more than 0.15 standard deviations, see
    `mhrun.engine.diagnosis.mean_bias.biases_of_means`. A
    thermostat removes the part of that error which all directions have alike, and has a bias of its kinetic energy,
    `bias.in_small_steps`: the two are bounds then; and the step is no longer than the dynamics' `largest_step`. Where
    the posterior is far from normal short runs try it, see `mhrun.engine.pilot.trial.tried`.

    Args:
        method: whose kernel is a dynamics.
        surface: of its target; gradients that are evaluated are added to its count.
        start: where its chains begin, and their scale.
        temperatures: of the chains (C,).

    Raises:
        UserError: no step size is given, and the curvature gives none.
    """
    kernel, temperature = method.kernel, float(temperatures.min())
    assert isinstance(kernel, Unadjusted)
    given = None if method.plan.is_open else method.plan.at_collected_steps().step_size.amax(0)
    m = _minibatch(method.target) if kernel.m_is_open else None
    if kernel.dynamics.bias.noise is None:
        assert given is not None  # else the pilot refuses the method
        return DynamicsStep(
            given, m, {"why": f"nothing is known of the bias of {type(kernel.dynamics).__name__} at it."}
        )
    size = m or kernel.m or method.target.n
    root = _root_of_noise(method, surface, start, temperature, size)
    rates = _error_rates(method, surface, start, temperature, size, root)
    if (
        m is not None
        and method.target.surrogate is not None
        and m < (size := _balanced(m, rates, method.target.n))
    ):
        m, rates = size, _error_rates(method, surface, start, temperature, size, root)
    if not 0 < rates.error < math.inf:
        reason = f"the curvature of the log posterior is {rates.error:g} where chains begin"
        if given is None:
            raise UserError(f"{method.name}: {reason}, which gives no step size; give step_size a number.")
        return DynamicsStep(given, m, {"why": f"{reason}."})
    steepness = 1.0
    if given is None and kernel.dynamics.overdamped:
        steepness = _steepness(surface, start, temperature)
        rates = rates.steeper(steepness)
    judged = _judged(method, surface, start, temperature, rates)
    rate = None if judged is None else judged.shift(1.0, of_steps_alone=True)
    hottest = float(method.plan.at_collected_steps().noise_temperature.max())
    of_thermostat = kernel.dynamics.largest_step(method.target.dim, hottest)
    if given is None and not of_thermostat > 0:
        raise UserError(
            f"{method.name}: the thermostat of {type(kernel.dynamics).__name__} is stable at no step size; lower the "
            "friction."
        )
    largest_step = min(2 * _VARIANCE_ERROR / rates.error, rates.largest_step, of_thermostat)
    step, trials = given, None
    if step is None:
        shorter = math.inf if rate is None else _MEAN_ERROR / abs(rate.size)
        longest = min(largest_step, shorter)
        if start.scale is not None and start.is_skewed:
            with_m = kernel if m is None else kernel.with_m(m)
            trials = tried(method, with_m, start.scale, longest, start.theta, temperatures)
        step = torch.tensor([longest if trials is None else trials.step_size], dtype=torch.float64)
    longest = float(step.max())
    facts = _facts_of_variance(longest, rates, kernel.dynamics.bias.in_small_steps, of_thermostat, steepness)
    if trials is not None:
        facts |= {"n_lik": trials.n_lik, "n_grad": trials.n_grad}
        facts["why"] += _trials_in_words(trials, longest)
    expected = expected_draws(method, start.curvature, step)
    if expected is not None:
        facts["expected_ess"] = expected
        is_exact, noisy = facts["variance_error"] < _VARIANCE_ERROR / 2, 2 * rates.of_the_step < rates.error
        facts["why"] += in_words(method, expected, is_exact=is_exact, noisy=noisy)
    shift = None if judged is None else judged.shift(longest)
    if shift is not None and abs(shift.size) >= _SHOWN:
        is_limited = given is None and rate is not None and longest * abs(rate.size) > 0.99 * _MEAN_ERROR
        facts |= {"mean_error": abs(shift.size), "mean_error_of": shift.name}
        facts["why"] += _shift_in_words(shift, facts["variance_bias"], is_limited=is_limited)
    return DynamicsStep(step, m, facts)


def _facts_of_variance(
    step: float, rates: _ErrorRates, bias: float, of_thermostat: float, steepness: float
) -> PilotFacts:
    """Return by how much the variance is expected to be off at a step size, in numbers and words.

    Args:
        step: the step size.
        rates: by what errors grow with it.
        bias: of small steps.
        of_thermostat: the step size up to which the thermostat is stable.
        steepness: see `_steepness`.
    """
    where = (
        "if the posterior is normal"
        if steepness == 1
        else f"on the steep side of the posterior, where the curvature is {steepness:.2g} times that at the mode"
    )
    error = step * rates.error / 2
    size_in_words = f"between {-bias:.0%} too small and" if bias < 0 else "about"
    thermostat = ""
    if of_thermostat < rates.stability_bound:
        thermostat = f", and its thermostat, which fluctuates most with few parameters, below about {of_thermostat:.3g}"
    return {
        "stability_bound": rates.stability_bound,
        "why": f"its stationary variance is then expected {size_in_words} {error:.0%} too large {where}, "
        f"of which minibatch noise is {1 - rates.of_the_step / rates.error:.0%}; "
        f"steps are stable below {rates.stability_bound:.3g}{thermostat}.",
        "variance_error": error,
        "variance_bias": bias,
    }


def _shift_in_words(shift: MeanBias, bias: float, *, is_limited: bool) -> str:
    """Return a sentence on a mean that is off; `is_limited`: the step is short because of it."""
    size, reason = abs(shift.size), ""
    if bias < 0 and size > 2 * _MEAN_ERROR:
        reason = ", at shorter steps too: a smaller friction lowers it"
    elif is_limited:
        reason = ", and would be by more at longer steps"
    return f" The mean of {shift.name} is off by up to {size:.2g} posterior standard deviations{reason}."


def _trials_in_words(trials: Trials, longest: float) -> str:
    """Return a sentence on trials that made the step shorter, or nothing."""
    if not longest < trials.longest:
        return ""
    at = f"at a step size of {trials.longest:.3g}"
    if math.isnan(trials.wider):
        return f" In trials chains diverged {at}, and at each half of it down to this one."
    if math.isinf(trials.wider):
        return f" In trials chains diverged {at}."
    return f" In trials draws were {trials.wider:.2g} times as wide {at} as at this one."


class _ErrorRates(NamedTuple):
    """By what the variance of a dynamics grows with its step size, where that is largest: twice the relative error."""

    error: float  # lambda_max(b H + c V / T)
    of_the_step: float  # b lambda_max(H)
    stability_bound: float  # 2 / lambda_max(H)
    largest_step: float  # at which a known noise is small enough to be taken off
    of_noise: float  # c V / T, the mean over directions

    def steeper(self, times: float) -> _ErrorRates:
        """Return the rates where the curvature is so many times as large."""
        more = (times - 1) * self.of_the_step
        return self._replace(
            error=self.error + more,
            of_the_step=self.of_the_step + more,
            stability_bound=self.stability_bound / times,
        )


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
    points = start.theta[:1] if scale is None else scale.center.to(start.theta)[None]
    if target.surrogate is not None:
        points = _around(start.theta, scale, temperature, method.seed)
    return root_of_covariance(surface.of_all_data() if start.whole else surface, points, scale)


def _error_rates(
    method: Method, surface: Surface, start: ScaledStart, temperature: float, m: int, root: Tensor | None
) -> _ErrorRates:
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
    return _ErrorRates(
        error,
        dynamics.bias.steps * largest,
        2 / largest if largest > 0 else math.inf,
        2 * _TAKEN_OFF / (gain * known) if known else math.inf,
        gain * average,
    )


class _Judged(NamedTuple):
    """Draws of the posterior, from which the shifts of means are known."""

    draws: Tensor  # (C, S, D)
    height: Tensor  # (C S,), see `mhrun.engine.diagnosis.mean_bias.largest_bias`
    grad: Tensor  # (C S, D), likewise
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


def _size(found: tuple[float, int]) -> float:
    return abs(found[0])


def _judged(
    method: Method, surface: Surface, start: ScaledStart, temperature: float, rates: _ErrorRates
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


def _minibatch(target: Target) -> int:
    if target.surrogate is not None:
        return min(target.n, _LEAST_M)
    return min(target.n, max(_LEAST_M, min(_MOST_M, target.n // 5)))


def _balanced(m: int, rates: _ErrorRates, n: int) -> int:
    """Return the minibatch size at which noise adds as much to the variance as the steps do, at most 20,000.

    An effective draw takes twice as many evaluations as with small minibatches, and far fewer steps.
    """
    wanted = m * (rates.error - rates.of_the_step) / rates.of_the_step if rates.of_the_step > 0 else m
    return min(n, _MOST_WITH_SURROGATE, math.ceil(wanted)) if math.isfinite(wanted) else m


def _around(theta: Tensor, scale: Scale | None, temperature: float, seed: int) -> Tensor:
    """Return points (P, D) one standard deviation about the mode: a control variate has no noise at the mode itself."""
    if scale is None:
        return theta[:POINTS]
    z = Draws(Streams(derive_key(seed, "noise"), POINTS, theta.device), 0).normal(
        Purpose.INIT, theta.shape[1]
    )
    return scale.to_theta(temperature**0.5 * z).to(theta)
