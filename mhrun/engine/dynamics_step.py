"""The step size and the minibatch size of a dynamics, from the curvature of the posterior and its gradients' noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.engine.curvature import Surface, largest_curvature
from mhrun.engine.method import Method
from mhrun.errors import UserError
from mhrun.kernels import Unadjusted
from mhrun.kernels.preconditioned import Scale
from mhrun.random import Draws, Purpose, Streams, derive_key

_VARIANCE_ERROR = 0.1  # relative error of the variance that the step size of a dynamics is chosen for
_SINGLE = 512  # data whose gradients the noise of a minibatch is estimated from
_POINTS = 8  # where it is estimated with a control variate
# Of a minibatch of gradients that the pilot chooses: n / 5 between these; with a control variate the least, because the
# noise of its gradients grows with n as the curvature does.
_LEAST_M, _MOST_M = 100, 5_000
_STEPS = 64  # at which a schedule that gives the step size is read


def step_of_dynamics(
    method: Method,
    surface: Surface,
    theta: Tensor,
    scale: Scale | None,
    curvature: Tensor | None,
    temperature: float,
    facts: dict[str, Any],
) -> tuple[Tensor, int | None]:
    """Return the step size of a dynamics and its minibatch size, if that is open.

    On a quadratic posterior of curvature H with gradient noise of covariance V, the variance is too large by the
    relative error e (b H + c V / T) / 2, with b and c the dynamics' `curvature_gain` and `noise_gain`. An open step
    size e makes its largest eigenvalue 10 %: at most a tenth of the stability bound 2 / lambda_max(H). Of a step size
    that is given `facts` get the error. A thermostat removes the part of that error which all directions have alike,
    and has a bias of its kinetic energy, `small_step_bias`: the two are bounds then.
    """
    kernel, target = method.kernel, method.target
    assert isinstance(kernel, Unadjusted)
    scheduled_step = None if method.plan.is_open else _largest_step_size(method)
    m = None
    if kernel.m_is_open:
        m = min(target.n, max(_LEAST_M, min(_MOST_M, target.n // 5)))
        if target.surrogate is not None:
            m = min(target.n, _LEAST_M)
    if kernel.dynamics.noise_gain is None:
        assert scheduled_step is not None  # else the pilot refuses
        facts["why"] = f"nothing is known of the bias of {type(kernel.dynamics).__name__} at it."
        return scheduled_step, m
    gain, bending = kernel.dynamics.noise_gain, kernel.dynamics.curvature_gain
    size = m or kernel.m or target.n
    place = theta[0] if scale is None else scale.center.to(theta)
    spread = torch.zeros(1, target.dim, dtype=torch.float64)
    if target.n > 1 and size < target.n:
        points = place[None] if target.surrogate is None else _around(theta, scale, temperature, method.seed)
        single = surface.single_gradients(points, _SINGLE).cpu()
        single = single if scale is None else scale.pull(single)
        freedom = max(1, single.shape[1] - 1) * len(points)
        spread = ((single - single.mean(1, keepdim=True)) / math.sqrt(freedom)).flatten(0, 1)
    share = float(torch.as_tensor(target.batches.error_share(size))) * target.n**2 / size
    if curvature is not None:
        total = bending * curvature.double() + gain / temperature * share * spread.T @ spread
        total += gain / temperature * target.gradient_noise * torch.eye(len(total), dtype=torch.float64)
        largest = float(torch.linalg.eigvalsh(total).max())
        bound = float(torch.linalg.eigvalsh(curvature.double()).max())
    else:
        bound = largest_curvature(surface, place)
        noise = float(torch.linalg.eigvalsh(spread @ spread.T).max()) * share + target.gradient_noise
        largest = bending * bound + gain / temperature * noise
    if not 0 < largest < math.inf:
        if scheduled_step is not None:
            facts["why"] = f"the curvature of the log posterior is {largest:g} where chains begin."
            return scheduled_step, m
        raise UserError(
            f"{method.name}: the curvature of the log posterior is {largest:g} where chains begin, which gives no step "
            "size; give step_size a number."
        )
    step = (
        torch.tensor([2 * _VARIANCE_ERROR / largest], dtype=torch.float64)
        if scheduled_step is None
        else scheduled_step
    )
    error = float(step.max()) * largest / 2
    facts["stability_bound"] = 2 / bound if bound > 0 else math.inf
    low = kernel.dynamics.small_step_bias
    size_in_words = f"between {-low:.0%} too small and" if low < 0 else "about"
    facts["why"] = (
        f"its stationary variance is then expected {size_in_words} {error:.0%} too large, of which minibatch noise is "
        f"{1 - bending * bound / largest:.0%}; steps are stable below {facts['stability_bound']:.3g}."
    )
    facts["variance_error"] = error
    facts["variance_bias"] = low
    return step, m


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
