"""The step size and the minibatch size of a dynamics, from the curvature of the posterior and its gradients' noise."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.diagnosis.mean_bias import MeanBias
from mhrun.engine.landscape.surface import Surface
from mhrun.engine.method import Method
from mhrun.engine.pilot.dynamics_errors import (
    MEAN_ERROR,
    VARIANCE_ERROR,
    ErrorsByStep,
    errors_by_step,
    minibatch_and_rates,
    open_minibatch,
)
from mhrun.engine.pilot.effective_draws import expected_draws, in_words
from mhrun.engine.pilot.start import ScaledStart
from mhrun.engine.pilot.trial import Trials, tried
from mhrun.errors import UserError
from mhrun.kernels import Unadjusted
from mhrun.store.pilot_facts import PilotFacts

_SHOWN = 0.05  # posterior standard deviations by which a mean is off, from which on it is said


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
    size e makes its largest eigenvalue 10 %: at most a tenth of the stability bound 2 / lambda_max(H). The step is
    shorter in these cases:

    - An overdamped dynamics of constrained parameters: H is the mean curvature on the steep side, if that is much
      larger than at the mode.
    - Draws judged the scale: the mean of no coordinate may be off by more than 0.15 standard deviations, see
      `mhrun.engine.diagnosis.mean_bias.biases_of_means`.
    - A dynamics with a `largest_step`, such as one with a thermostat: the step is no longer.
    - A posterior far from normal: short runs try the step, see `mhrun.engine.pilot.trial.tried`.

    A thermostat removes the part of the error which all directions have alike, and has a bias of its kinetic energy,
    `bias.in_small_steps`: the two are bounds then. For a step size that is given, the error is in `facts`.

    Args:
        method: whose kernel is a dynamics.
        surface: of its target; gradients that are evaluated are added to its count.
        start: where its chains begin, and their scale.
        temperatures: of the chains (C,).

    Raises:
        UserError: no step size is given, and neither the curvature nor the thermostat gives one.
    """
    kernel, temperature = method.kernel, float(temperatures.min())
    assert isinstance(kernel, Unadjusted)
    given = None if method.plan.is_open else method.plan.collected_controls.step_size.amax(0)
    if kernel.dynamics.bias.noise is None:
        assert given is not None  # else the pilot refuses the method
        why = f"nothing is known of the bias of {type(kernel.dynamics).__name__} at it."
        return DynamicsStep(given, open_minibatch(method), {"why": why})
    m, rates = minibatch_and_rates(method, surface, start, temperature)
    if not 0 < rates.error < math.inf:
        reason = f"the curvature of the log posterior is {rates.error:g} where chains begin"
        if given is None:
            raise UserError(f"{method.name}: {reason}, which gives no step size; give step_size a number.")
        return DynamicsStep(given, m, {"why": f"{reason}."})
    errors = errors_by_step(method, surface, start, temperature, rates)
    if given is None and not errors.stable_thermostat > 0:
        raise UserError(
            f"{method.name}: the thermostat of {type(kernel.dynamics).__name__} is stable at no step size; lower the "
            "friction."
        )
    step, trials = given, None
    if step is None:
        step_size = errors.longest_step
        if start.scale is not None and start.is_skewed:
            with_m = kernel if m is None else kernel.with_m(m)
            trials = tried(method, with_m, start.scale, step_size, start.theta, temperatures)
            step_size = trials.step_size
        step = torch.tensor([step_size], dtype=torch.float64)
    return DynamicsStep(step, m, _facts(method, start, step, errors, trials))


def _facts(
    method: Method, start: ScaledStart, step: Tensor, errors: ErrorsByStep, trials: Trials | None
) -> PilotFacts:
    """Return what is expected at a step size, given (C,) or chosen (1,), in numbers and words."""
    assert isinstance(method.kernel, Unadjusted)
    longest, rates = float(step.max()), errors.rates
    facts = _facts_of_variance(longest, errors, method.kernel.dynamics.bias.in_small_steps)
    if trials is not None:
        facts |= {"n_lik": trials.n_lik, "n_grad": trials.n_grad}
        facts["why"] += _trials_in_words(trials, longest)
    expected = expected_draws(method, start.curvature, 2 / rates.stability_bound, step)
    if expected is not None:
        facts["expected_ess"] = expected.draws
        is_exact, noisy = facts["variance_error"] < VARIANCE_ERROR / 2, 2 * rates.of_the_step < rates.error
        facts["why"] += in_words(method, expected, is_exact=is_exact, noisy=noisy)
    shift = None if errors.judged is None else errors.judged.shift(longest)
    if shift is not None and abs(shift.size) >= _SHOWN:
        is_limited = method.plan.is_open and longest > 0.99 * errors.longest_for_means
        facts |= {"mean_error": abs(shift.size), "mean_error_of": shift.name}
        facts["why"] += _shift_in_words(shift, facts["variance_bias"], is_limited=is_limited)
    return facts


def _facts_of_variance(step: float, errors: ErrorsByStep, bias: float) -> PilotFacts:
    """Return by how much the variance is expected to be off at a step size, in numbers and words.

    Args:
        step: the step size.
        errors: of the dynamics.
        bias: of the variance in the limit of small steps, relative.
    """
    rates, steepness = errors.rates, errors.steepness
    where = (
        "if the posterior is normal"
        if steepness == 1
        else f"on the steep side of the posterior, where the curvature is {steepness:.2g} times that at the mode"
    )
    error = step * rates.error / 2
    size_in_words = f"between {-bias:.0%} too small and" if bias < 0 else "about"
    thermostat = ""
    if errors.stable_thermostat < rates.stability_bound:
        thermostat = (
            ", and its thermostat, which fluctuates most with few parameters, below about "
            f"{errors.stable_thermostat:.3g}"
        )
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
    if bias < 0 and size > 2 * MEAN_ERROR:
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
