"""By how much minibatch noise of gradients makes the draws of a dynamics too wide."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.engine.method import Method
from mhrun.engine.pilot.surface import Surface
from mhrun.kernels import Unadjusted
from mhrun.kernels.preconditioned import PreconditionedDynamics
from mhrun.models.module import ModuleModel
from mhrun.models.perceptron import Perceptron

_SINGLE = 512  # data whose gradients the noise of a minibatch is estimated from
_POINTS = 8  # chains at whose last points it is estimated with a control variate, which has none at the mode
_STEPS = 64  # kept steps at which schedules are read
_WIDEST = 20_000  # parameters up to which it is estimated


def excess_variance(method: Method, theta: Tensor) -> float | None:
    """Return the relative excess of the variance of draws in the direction where minibatch noise is largest.

    Gradient noise of covariance V adds c e V / 2 to the temperature, with e the step size and c the `noise_gain` of the
    dynamics: in small steps the variance along a direction u is too large by the relative excess c e u'Vu / (2 T).

    Args:
        method: whose steps have ended.
        theta: the last points of its chains (C, D).

    Returns:
        The excess at the largest eigenvalue of V, the mean over the kept steps and the median over the chains. None if
        the method has no such noise, if its dynamics corrects for it or declares nothing, if a pilot has judged it, or
        for a network.
    """
    kernel, target = method.kernel, method.target
    if not isinstance(kernel, Unadjusted) or isinstance(kernel.dynamics, PreconditionedDynamics):
        return None
    if isinstance(
        target.model, ModuleModel | Perceptron
    ):  # what a width of weights means is in no such number
        return None
    dynamics, m = kernel.dynamics, kernel.m
    if (
        dynamics.noise_gain is None
        or dynamics.corrects_noise
        or dynamics.optimises
        or kernel.passes
        or m is None
    ):
        return None
    share = float(torch.as_tensor(target.batches.error_share(m)))
    if target.n < 2 or share <= 0 or target.dim > _WIDEST:
        return None
    step_size, temperature = _controls(method)
    if not (temperature > 0).all():
        return None
    points = theta[:1] if target.surrogate is None else theta[:_POINTS]
    surface = Surface(target, float(np.median(temperature)), method.seed)
    single = surface.single_gradients(points, max(2 * len(points), _SINGLE)).cpu()
    freedom = max(1, single.shape[1] - 1) * len(points)
    spread = ((single - single.mean(1, keepdim=True)) / freedom**0.5).flatten(0, 1)
    gram = spread @ spread.T if len(spread) < spread.shape[1] else spread.T @ spread
    if not gram.isfinite().all():
        return None
    noise = float(torch.linalg.eigvalsh(gram).max()) * share * target.n**2 / m
    ratio = float(np.median(step_size.mean(axis=0) / temperature))
    return 0.5 * dynamics.noise_gain * ratio * noise


def _controls(method: Method) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the step sizes (K, C) at some of the kept steps, and the noise temperatures (C,) at the last of them."""
    plan, shape = method.plan, method.shape
    kept = plan.collected if plan.collected is not None else np.arange(shape.warmup + 1, shape.total + 1)
    steps = kept[np.linspace(0, len(kept) - 1, min(len(kept), _STEPS)).astype(int)]
    memory = plan.start()
    controls = [plan.controls(memory, int(step), 1) for step in steps]
    return np.stack([each.step_size[0].numpy() for each in controls]), controls[-1].noise_temperature[
        0
    ].numpy()
