"""Minibatch noise of the exchanges of a ladder, at its draws."""

from __future__ import annotations

import math

import numpy as np
import torch
import xarray as xr

from mhrun.engine.diagnosis.kept_draws import some_draws
from mhrun.engine.method import Method
from mhrun.kernels import ReplicaExchange
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Target

EXCHANGE_NOISE = "exchange_noise"  # in a summary
_TIMES = 50  # draws of each rung at which exchanges are evaluated


def exchange_noise(method: Method, trace: xr.DataTree) -> list[float | None] | None:
    """Return the standard deviation over minibatches of the log-ratio of exchanges between neighbouring rungs.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        (R - 1) numbers, the root mean square over ladders and some of the draws; None for a pair at which it is not
        finite, as with m = 1. Returns None without exchanges; for a rule that corrects for any noise, or reads data
        until it can decide; and if no draw was kept.
    """
    kernel, target = method.kernel, method.target
    if not isinstance(kernel, ReplicaExchange) or kernel.optimises or method.shape.thin is None:
        return None
    if not is_noisy(kernel, target) or target.has_buffers or target.data.differs_by_chain:
        return None
    chains = method.shape.chains
    draws = some_draws(method, trace, np.arange(chains), _TIMES * chains, fewest=chains)
    if draws is None:
        return None
    streams = Streams(derive_key(method.seed, "exchange noise"), chains, target.device)
    hot = torch.as_tensor(method.plan.collected_controls.temperature, device=target.device)
    points = draws.to(device=target.device, dtype=method.dtype)
    found = torch.stack(
        [
            kernel.noise(target, points[:, number].contiguous(), hot, Draws(streams, number)).double().cpu()
            for number in range(points.shape[1])
        ]
    )
    squared = found.flatten(0, 1)  # (draws x ladders, R - 1)
    return [
        float(pair[pair.isfinite()].mean().sqrt()) if bool(pair.isfinite().any()) else None
        for pair in squared.T
    ]


def is_noisy(kernel: ReplicaExchange, target: Target) -> bool:
    """Return whether exchanges have noise for which their rule does not correct at any size."""
    if kernel.rule.wants_terms or math.isinf(kernel.rule.noise_limit_of(math.inf)):
        return False
    return target.energy_noise > 0 or has_minibatches(kernel, target)


def has_minibatches(kernel: ReplicaExchange, target: Target) -> bool:
    """Return whether exchanges evaluate a part of the data."""
    m = kernel.pairing.m
    return m is not None and target.batches.error_share(m) > 0
