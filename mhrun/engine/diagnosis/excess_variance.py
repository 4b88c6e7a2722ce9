"""Excess variance of the draws of a dynamics by minibatch noise of gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mhrun.engine.diagnosis.gradient_noise import (
    POINTS,
    largest_eigenvalue,
    of_minibatch,
    root_of_covariance,
    rows_of,
)
from mhrun.engine.diagnosis.kept_draws import cold_draws
from mhrun.engine.landscape.surface import Surface
from mhrun.engine.method import Method
from mhrun.kernels import Unadjusted
from mhrun.kernels.preconditioned import PreconditionedDynamics
from mhrun.parts import Kernel
from mhrun.random import derive_key
from mhrun.target.function_space import is_network
from mhrun.types import State
from mhrun.types.scale import Scale

_MAX_DIM = 20_000  # parameters up to which the excess is estimated
_DRAWS = 128  # where gradients of single data are evaluated
# Numbers of gradients of all data and of products of their covariance, at most, and the share of the evaluations.
_NUMBERS, _PRODUCTS, _SHARE = 1 << 25, 1 << 33, 0.2
_EIGEN = 10  # products of an eigendecomposition over D^3
_EACH = 100  # data of each point in a pass, at least
_HELD = 1 << 23  # numbers of the points' covariances, at most


class Excess(NamedTuple):
    """Relative excess of the variance of draws by minibatch noise of gradients."""

    largest: float  # in the direction where it is largest
    mean: float  # over directions


def excess_variance(method: Method, trace: xr.DataTree, state: State) -> float | None:
    """Return the largest `excess_of_noise`, in the coordinates in which the method's dynamics moves.

    Gradients are evaluated at draws of the second half, of the coldest rungs of ladders: a surrogate has noise at some
    points only, and the gradients of rare data are large at some only.

    Args:
        method: whose steps have ended.
        trace: with its draws.
        state: the last one, whose points are taken of a method that keeps no draws, or has chains without any.
    """
    if not _has_noise(method):
        return None
    theta = state.evaluation.theta
    draws = cold_draws(method, trace, 2 * _DRAWS, fewest=1)
    if draws is None:
        temperature = method.plan.collected_controls.noise_temperature
        is_cold = torch.from_numpy(temperature == temperature.min()).to(theta.device)
        points = theta[is_cold & ~state.aux["stopped"]]
        if not len(points):
            return None
    else:
        points = draws[:, draws.shape[1] // 2 :].flatten(0, 1).to(device=theta.device, dtype=theta.dtype)
    excess = excess_of_noise(
        method, points[:: -(-len(points) // _DRAWS)], scale_of_dynamics(method.kernel.of_a_chain)
    )
    return None if excess is None else excess.largest


def scale_of_dynamics(kernel: Kernel) -> Scale | None:
    """Return the scale of the coordinates in which a dynamics moves, if it has one."""
    return kernel.dynamics.scale if isinstance(kernel.dynamics, PreconditionedDynamics) else None


def excess_of_noise(method: Method, points: Tensor, scale: Scale | None) -> Excess | None:
    """Return by how much gradient noise makes the variance of draws too large.

    Gradient noise of covariance V adds c e V / 2 to the temperature, with e the step size and c the `bias.noise` of the
    dynamics: in small steps the variance along a direction u is too large by the relative excess c e u'Vu / (2 T). The
    `known_noise` for which the dynamics corrects is subtracted from V.

    Args:
        method: whose steps have ended.
        points: where gradients are evaluated (P, D).
        scale: of the coordinates in which its dynamics moves.

    Returns:
        The mean over the kept steps and the median over the chains; over the coldest rungs of ladders, as if these
        exchanged nothing. None if the method has no such noise, if its dynamics corrects for it by itself or declares
        nothing, for a network, and for data that differ by chain.
    """
    kernel, target = method.kernel.of_a_chain, method.target
    if not _has_noise(method):
        return None
    assert isinstance(kernel, Unadjusted)
    dynamics = kernel.dynamics
    assert dynamics.bias.noise is not None
    step_size, temperature, _ = method.plan.collected_controls
    if not (temperature > 0).all():
        return None
    if method.kernel.rungs > 1:
        cold = temperature == temperature.min()
        step_size, temperature = step_size[:, cold], temperature[cold]
    isotropic = target.gradient_noise - (dynamics.known_noise or 0.0)
    squares = torch.ones(1) if scale is None else torch.linalg.eigvalsh(scale.metric)
    noise = Excess(isotropic * float(squares.max()), isotropic * float(squares.mean()))
    m = target.n if kernel.m is None else kernel.m
    if target.n > 1 and (share := of_minibatch(target, m)) > 0:
        root = _root(method, points, scale, float(np.median(temperature)))
        average = float(root.square().sum()) / target.dim
        noise = Excess(noise.largest + share * largest_eigenvalue(root), noise.mean + share * average)
    if not 0 < noise.largest < math.inf:
        return None
    rate = 0.5 * dynamics.bias.noise * float(np.median(step_size.mean(0).numpy() / temperature))
    return Excess(rate * noise.largest, rate * max(0.0, noise.mean))


def _has_noise(method: Method) -> bool:
    """Return whether the effect of gradient noise on the draws of a method can be estimated."""
    kernel, target = method.kernel.of_a_chain, method.target
    # What a width of weights means is in no such number, and a datum alone has no gradient with BatchNorm.
    if not isinstance(kernel, Unadjusted) or is_network(target.model) or target.has_buffers:
        return False
    dynamics = kernel.dynamics
    if dynamics.bias.noise is None or dynamics.optimises or kernel.passes or target.dim > _MAX_DIM:
        return False
    corrects_all = dynamics.corrects_noise and not dynamics.known_noise
    return not (corrects_all or target.data.differs_by_chain)


def _root(method: Method, points: Tensor, scale: Scale | None, temperature: float) -> Tensor:
    """Return the `root_of_covariance`, of all data if these are not many: a part may have none of those that matter.

    Few data are evaluated at each of the points. Many data are divided among the points, in as many passes as there is
    time for, each with other points.
    """
    target = method.target
    # Other data than those from which a pilot chose the step size.
    surface = Surface(target, temperature, derive_key(method.seed, "excess"))
    at_each = rows_of(target.dim) // target.n
    if at_each >= min(len(points), POINTS):  # all data at each of these points
        return root_of_covariance(surface, points[:: -(-len(points) // at_each)], scale)
    products = target.dim**2 * (target.n + _EIGEN * target.dim)  # of a pass over all data
    most = min(_NUMBERS / target.dim, _SHARE * method.reads) / target.n
    passes = int(min(len(points), most, _PRODUCTS / products))
    if passes == 0 and method.pilot is not None and method.pilot.get("whole"):
        passes = 1
    if passes == 0:
        return root_of_covariance(surface, points, scale)
    surface = surface.of_all_data()
    in_pass = max(1, min(-(-len(points) // passes), target.n // _EACH, _HELD // target.dim**2))
    points = points[:: max(1, len(points) // (passes * in_pass))][: passes * in_pass]
    return root_of_covariance(surface, points, scale, in_pass)
