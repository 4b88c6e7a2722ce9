"""By how much minibatch noise of gradients makes the draws of a dynamics too wide."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from mhrun.engine.gradient_noise import (
    POINTS,
    largest_eigenvalue,
    of_minibatch,
    root_of_covariance,
)
from mhrun.engine.method import Method
from mhrun.engine.surface import Surface
from mhrun.kernels import Unadjusted
from mhrun.kernels.preconditioned import PreconditionedDynamics
from mhrun.target.function_space import is_network

_WIDEST = 20_000  # parameters up to which it is estimated


def excess_variance(method: Method, theta: Tensor) -> float | None:
    """Return the relative excess of the variance of draws in the direction where gradient noise is largest.

    Gradient noise of covariance V adds c e V / 2 to the temperature, with e the step size and c the `noise_gain` of the
    dynamics: in small steps the variance along a direction u is too large by the relative excess c e u'Vu / (2 T). A
    `known_noise` that the dynamics takes off is subtracted from V.

    Args:
        method: whose steps have ended.
        theta: the last points of its chains (C, D).

    Returns:
        The excess at the largest eigenvalue of V, the mean over the kept steps and the median over the chains. None if
        the method has no such noise, if its dynamics corrects for it by itself or declares nothing, if a pilot has
        judged it, or for a network.
    """
    kernel, target = method.kernel, method.target
    if not isinstance(kernel, Unadjusted) or isinstance(kernel.dynamics, PreconditionedDynamics):
        return None
    # What a width of weights means is in no such number, and a datum alone has no gradient with BatchNorm.
    if is_network(target.model) or target.has_buffers:
        return None
    dynamics = kernel.dynamics
    if dynamics.noise_gain is None or dynamics.optimises or kernel.passes or target.dim > _WIDEST:
        return None
    if dynamics.corrects_noise and not dynamics.known_noise:
        return None
    noise = target.gradient_noise - (dynamics.known_noise or 0.0)
    step_size, temperature = method.plan.at_collected_steps()
    if not (temperature > 0).all():
        return None
    m = target.n if kernel.m is None else kernel.m
    if target.n > 1 and (share := of_minibatch(target, m)) > 0:
        points = theta[:1] if target.surrogate is None else theta[:POINTS]
        surface = Surface(target, float(np.median(temperature)), method.seed)
        noise += share * largest_eigenvalue(root_of_covariance(surface, points))
    if not 0 < noise < math.inf:
        return None
    ratio = float(np.median(step_size.mean(0).numpy() / temperature))
    return 0.5 * dynamics.noise_gain * ratio * noise
