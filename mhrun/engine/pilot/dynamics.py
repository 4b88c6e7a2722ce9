"""The step size and the minibatch size of a dynamics, from the curvature of the posterior and its gradients' noise."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mhrun.engine.method import Method
from mhrun.engine.pilot.curvature import largest_curvature
from mhrun.engine.pilot.start import ScaledStart
from mhrun.engine.pilot.surface import Surface
from mhrun.errors import UserError
from mhrun.kernels import Unadjusted
from mhrun.kernels.preconditioned import Scale
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.target import Target

_VARIANCE_ERROR = 0.1  # relative error of the variance that the step size of a dynamics is chosen for
_SINGLE = 512  # data whose gradients the noise of a minibatch is estimated from
_POINTS = 8  # where it is estimated with a control variate
# Of a minibatch of gradients that the pilot chooses: n / 5 between these; with a control variate the least, because the
# noise of its gradients grows with n as the curvature does.
_LEAST_M, _MOST_M = 100, 5_000
_STEPS = 64  # at which a schedule that gives the step size is read


class DynamicsStep(NamedTuple):
    """The step size and the minibatch size of a dynamics."""

    step_size: Tensor  # (1,), or of each chain (C,)
    m: int | None  # the minibatch size, if it was open
    facts: dict[str, Any]  # what is expected of them


def step_of_dynamics(
    method: Method, surface: Surface, start: ScaledStart, temperature: float
) -> DynamicsStep:
    """Return the step size of a dynamics and its minibatch size, if that is open.

    On a quadratic posterior of curvature H with gradient noise of covariance V, the variance is too large by the
    relative error e (b H + c V / T) / 2, with b and c the dynamics' `curvature_gain` and `noise_gain`. An open step
    size e makes its largest eigenvalue 10 %: at most a tenth of the stability bound 2 / lambda_max(H). Of a step size
    that is given the error is in `facts`. A thermostat removes the part of that error which all directions have alike,
    and has a bias of its kinetic energy, `small_step_bias`: the two are bounds then.

    Args:
        method: whose kernel is a dynamics.
        surface: of its target; gradients that are evaluated are added to its count.
        start: where its chains begin, and their scale.
        temperature: the lowest of the chains.

    Raises:
        UserError: no step size is given, and the curvature gives none.
    """
    kernel = method.kernel
    assert isinstance(kernel, Unadjusted)
    given = None if method.plan.is_open else _largest_step_size(method)
    m = _minibatch(method.target) if kernel.m_is_open else None
    if kernel.dynamics.noise_gain is None:
        assert given is not None  # else the pilot refuses the method
        return DynamicsStep(
            given, m, {"why": f"nothing is known of the bias of {type(kernel.dynamics).__name__} at it."}
        )
    rates = _error_rates(method, surface, start, temperature, m or kernel.m or method.target.n)
    if not 0 < rates.error < math.inf:
        reason = f"the curvature of the log posterior is {rates.error:g} where chains begin"
        if given is None:
            raise UserError(f"{method.name}: {reason}, which gives no step size; give step_size a number.")
        return DynamicsStep(given, m, {"why": f"{reason}."})
    step = given
    if step is None:
        step = torch.tensor([2 * _VARIANCE_ERROR / rates.error], dtype=torch.float64)
    error, stability_bound = float(step.max()) * rates.error / 2, rates.stability_bound
    bias = kernel.dynamics.small_step_bias
    size_in_words = f"between {-bias:.0%} too small and" if bias < 0 else "about"
    facts = {
        "stability_bound": stability_bound,
        "why": f"its stationary variance is then expected {size_in_words} {error:.0%} too large, of which minibatch "
        f"noise is {1 - rates.of_the_step / rates.error:.0%}; steps are stable below {stability_bound:.3g}.",
        "variance_error": error,
        "variance_bias": bias,
    }
    return DynamicsStep(step, m, facts)


class _ErrorRates(NamedTuple):
    """By what the variance of a dynamics grows with its step size, where that is largest: twice the relative error."""

    error: float  # lambda_max(b H + c V / T)
    of_the_step: float  # b lambda_max(H)
    stability_bound: float  # 2 / lambda_max(H)


def _error_rates(
    method: Method, surface: Surface, start: ScaledStart, temperature: float, m: int
) -> _ErrorRates:
    assert isinstance(method.kernel, Unadjusted)
    target, dynamics = method.target, method.kernel.dynamics
    place = start.theta[0] if start.scale is None else start.scale.center.to(start.theta)
    root = _root_of_noise(method, surface, start, place, temperature, m)
    share = float(torch.as_tensor(target.batches.error_share(m))) * target.n**2 / m
    gain = (dynamics.noise_gain or 0.0) / temperature
    if start.curvature is not None:
        total = dynamics.curvature_gain * start.curvature.double() + gain * share * root.T @ root
        total += gain * target.gradient_noise * torch.eye(len(total), dtype=torch.float64)
        error = float(torch.linalg.eigvalsh(total).max())
        largest = float(torch.linalg.eigvalsh(start.curvature.double()).max())
    else:
        largest = largest_curvature(surface, place)
        noise = float(torch.linalg.eigvalsh(root @ root.T).max()) * share + target.gradient_noise
        error = dynamics.curvature_gain * largest + gain * noise
    return _ErrorRates(error, dynamics.curvature_gain * largest, 2 / largest if largest > 0 else math.inf)


def _minibatch(target: Target) -> int:
    if target.surrogate is not None:
        return min(target.n, _LEAST_M)
    return min(target.n, max(_LEAST_M, min(_MOST_M, target.n // 5)))


def _root_of_noise(
    method: Method, surface: Surface, start: ScaledStart, place: Tensor, temperature: float, m: int
) -> Tensor:
    """Return R (K, D), R^T R the covariance of single data's gradients in the coordinates that chains move in."""
    target, scale = method.target, start.scale
    if target.n == 1 or m == target.n:
        return torch.zeros(1, target.dim, dtype=torch.float64)
    points = (
        place[None] if target.surrogate is None else _around(start.theta, scale, temperature, method.seed)
    )
    single = surface.single_gradients(points, _SINGLE).cpu()
    single = single if scale is None else scale.pull(single)
    freedom = max(1, single.shape[1] - 1) * len(points)
    return ((single - single.mean(1, keepdim=True)) / math.sqrt(freedom)).flatten(0, 1)


def _largest_step_size(method: Method) -> Tensor:
    """Return the largest step size (C,) at which draws are kept, from `_STEPS` steps of the schedule."""
    plan, shape = method.plan, method.shape
    kept_steps = (
        plan.collected if plan.collected is not None else np.arange(shape.warmup + 1, shape.total + 1)
    )
    steps = kept_steps[np.linspace(0, len(kept_steps) - 1, min(len(kept_steps), _STEPS)).astype(int)]
    memory = plan.start()
    return torch.stack([plan.controls(memory, int(step), 1).step_size[0] for step in steps]).amax(0)


def _around(theta: Tensor, scale: Scale | None, temperature: float, seed: int) -> Tensor:
    """Return points (P, D) one standard deviation about the mode: a control variate has no noise at the mode itself."""
    if scale is None:
        return theta[:_POINTS]
    z = Draws(Streams(derive_key(seed, "noise"), _POINTS, theta.device), 0).normal(
        Purpose.INIT, theta.shape[1]
    )
    return scale.to_theta(temperature**0.5 * z).to(theta)
