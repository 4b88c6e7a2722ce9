"""Gradients on all data at some draws of a dynamics, which show how far its distribution is from the posterior."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mhrun.diagnostics.chains import some_coordinates
from mhrun.engine.diagnosis.kept_draws import some_draws
from mhrun.engine.method import Method
from mhrun.target import Target
from mhrun.target.function_space import is_network

# Draws at which all data are evaluated: at most, and at least. The evaluations are at most so many times those of the
# run, whose minibatches take far longer for each datum than a pass over all, and at most so many. A ratio of variances
# (`mhrun.engine.diagnosis.virial`) has a standard error of 7 % by 400 draws, and of 14 % by 100.
_MAX_DRAWS, _MIN_DRAWS = 400, 100
_TIMES, _ROWS = 5.0, 30_000_000
_AT_ONCE = 4_000_000  # data, so that what a model keeps of each fits into memory
_MAX_DIM = 20_000  # parameters up to which gradients are evaluated
_CHAINS = 20  # whose draws are looked at, at most


class SampledGradients(NamedTuple):
    """Draws at the lowest temperature, of a ladder those of its coldest rung, and the log posterior there."""

    draws: Tensor  # (C, S, D)
    height: Tensor  # (C S,), the log posterior in the units of its gradient
    grad: Tensor  # (C S, D)
    temperature: float
    step_size: float  # the median of the chains


def sampled_gradients(method: Method, trace: xr.DataTree) -> SampledGradients | None:
    """Return gradients at draws of a method.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        None for another kernel than a dynamics or a ladder of one, an optimiser, a network, data that differ by chain,
        draws that were not kept or that are few, and data so many that evaluating them at 100 draws would take long.
    """
    kernel, target = method.kernel, method.target
    if kernel.of_a_chain.dynamics is None or kernel.optimises:
        return None
    if is_network(target.model) or target.has_buffers or target.data.differs_by_chain:
        return None
    step_size, temperatures, _ = method.plan.collected_controls
    if target.dim > _MAX_DIM or not (temperatures > 0).all() or method.shape.thin is None:
        return None
    count = min(_MAX_DRAWS, int(min(_ROWS, _TIMES * method.reads) // target.n))
    if count < _MIN_DRAWS:
        return None
    cold = np.flatnonzero(temperatures == temperatures.min())
    cold = cold[some_coordinates(len(cold), _CHAINS)]
    draws = some_draws(method, trace, cold, count, fewest=_MIN_DRAWS)
    if draws is None:
        return None
    temperature = float(temperatures.min())
    points = draws.reshape(-1, target.dim).to(device=target.device, dtype=method.dtype)
    size = float(step_size.mean(0)[cold].median())
    return SampledGradients(draws, *posterior_at(target, points, temperature), temperature, size)


def posterior_at(target: Target, points: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the log posterior in the units of its gradient (P,), and that (P, D), at points (P, D); float64."""
    heights, grads = [], []
    for some in points.split(max(1, _AT_ONCE // target.n)):
        hot = torch.full_like(some[:, 0], temperature)
        full = target.evaluate_full(some, hot)
        assert full.log_lik_mean is not None
        assert full.grad is not None
        heights.append(target.value(full.log_lik_mean, full.log_prior, hot).double().cpu())
        grads.append(full.grad.double().cpu())
    return torch.cat(heights), torch.cat(grads)
