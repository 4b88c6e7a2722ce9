"""Excess variance of the draws of a dynamics by minibatch noise of gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mhrun.engine.diagnosis.gradient_noise import (
    POINTS,
    largest_eigenvalue,
    of_minibatch,
    root_of_covariance,
)
from mhrun.engine.method import Method
from mhrun.engine.surface import Surface
from mhrun.kernels import Unadjusted
from mhrun.kernels.preconditioned import PreconditionedDynamics
from mhrun.parts import Kernel
from mhrun.random import derive_key
from mhrun.target.function_space import is_network
from mhrun.types.scale import Scale

_WIDEST = 20_000  # parameters up to which it is estimated


class Excess(NamedTuple):
    """Relative excess of the variance of draws by minibatch noise of gradients."""

    largest: float  # in the direction where it is largest
    mean: float  # over directions


def excess_variance(method: Method, theta: Tensor) -> float | None:
    """Return the largest `excess_of_noise`, in the coordinates in which the method's dynamics moves."""
    excess = excess_of_noise(method, theta, scale_of_dynamics(method.kernel.of_a_chain))
    return None if excess is None else excess.largest


def scale_of_dynamics(kernel: Kernel) -> Scale | None:
    """Return the scale of the coordinates in which a dynamics moves, if it has one."""
    return kernel.dynamics.scale if isinstance(kernel.dynamics, PreconditionedDynamics) else None


def excess_of_noise(method: Method, theta: Tensor, scale: Scale | None) -> Excess | None:
    """Return by how much gradient noise makes the variance of draws too large.

    Gradient noise of covariance V adds c e V / 2 to the temperature, with e the step size and c the `bias.noise` of the
    dynamics: in small steps the variance along a direction u is too large by the relative excess c e u'Vu / (2 T). The
    `known_noise` for which the dynamics corrects is subtracted from V.

    Args:
        method: whose steps have ended.
        theta: the last points of its chains (C, D).
        scale: of the coordinates in which its dynamics moves.

    Returns:
        The mean over the kept steps and the median over the chains; over the coldest rungs of ladders, as if these
        exchanged nothing. None if the method has no such noise, if its
        dynamics corrects for it by itself or declares nothing, for a network, and for data that differ by chain.
    """
    kernel, target = method.kernel.of_a_chain, method.target
    # What a width of weights means is in no such number, and a datum alone has no gradient with BatchNorm.
    if not isinstance(kernel, Unadjusted) or is_network(target.model) or target.has_buffers:
        return None
    if target.data.differs_by_chain:
        return None
    dynamics = kernel.dynamics
    if dynamics.bias.noise is None or dynamics.optimises or kernel.passes or target.dim > _WIDEST:
        return None
    if dynamics.corrects_noise and not dynamics.known_noise:
        return None
    step_size, temperature, _ = method.plan.at_collected_steps()
    if not (temperature > 0).all():
        return None
    if method.kernel.rungs > 1:
        cold = temperature == temperature.min()
        step_size, temperature, theta = step_size[:, cold], temperature[cold], theta[cold]
    isotropic = target.gradient_noise - (dynamics.known_noise or 0.0)
    squares = torch.ones(1) if scale is None else torch.linalg.eigvalsh(scale.metric)
    noise = Excess(isotropic * float(squares.max()), isotropic * float(squares.mean()))
    m = target.n if kernel.m is None else kernel.m
    if target.n > 1 and (share := of_minibatch(target, m)) > 0:
        points = theta[:1] if target.surrogate is None else theta[:POINTS]
        # Other data than those from which a pilot chose the step size.
        surface = Surface(target, float(np.median(temperature)), derive_key(method.seed, "excess"))
        if method.pilot is not None and method.pilot.get("whole"):
            surface = surface.of_all_data()
        root = root_of_covariance(surface, points, scale)
        average = float(root.square().sum()) / target.dim
        noise = Excess(noise.largest + share * largest_eigenvalue(root), noise.mean + share * average)
    if not 0 < noise.largest < math.inf:
        return None
    rate = 0.5 * dynamics.bias.noise * float(np.median(step_size.mean(0).numpy() / temperature))
    return Excess(rate * noise.largest, rate * max(0.0, noise.mean))
