"""Minibatch noise of the exchanges of a ladder, at its draws."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from mhrun.engine.diagnosis.kept_draws import some_draws
from mhrun.engine.method import Method
from mhrun.kernels import ReplicaExchange
from mhrun.random import Draws, Streams, derive_key

EXCHANGE_NOISE = "exchange_noise"  # in a summary
_TIMES = 50  # draws of each rung at which exchanges are evaluated


def exchange_noise(method: Method, folder: Path) -> list[float] | None:
    """Return the standard deviation over minibatches of the log-ratio of exchanges between neighbouring rungs.

    Args:
        method: whose steps have ended.
        folder: with its trace.

    Returns:
        (R - 1) numbers, the root mean square over ladders and some of the draws. None without exchanges; for a rule
        that corrects for any noise, or reads data until it can decide; and if no draw was kept.
    """
    kernel, target = method.kernel, method.target
    if not isinstance(kernel, ReplicaExchange) or kernel.optimises or method.shape.thin is None:
        return None
    if kernel.rule.wants_terms or math.isinf(kernel.rule.noise_limit):
        return None
    m = kernel.pairing.m
    if not target.energy_noise and (m is None or target.batches.error_share(m) == 0):
        return None
    if target.has_buffers or target.data.differs_by_chain:
        return None
    chains = method.shape.chains
    draws = some_draws(method, folder, np.arange(chains), _TIMES * chains, fewest=chains)
    if draws is None:
        return None
    _, temperature = method.plan.at_collected_steps()
    streams = Streams(derive_key(method.seed, "exchange noise"), chains, target.device)
    hot = torch.as_tensor(temperature, device=target.device)
    points = draws.to(device=target.device, dtype=method.dtype)
    total = torch.zeros(kernel.rungs - 1, dtype=torch.float64)
    for number in range(points.shape[1]):
        noise = kernel.noise(target, points[:, number].contiguous(), hot, Draws(streams, number))
        total += noise.double().mean(0).cpu()
    return [float(value) for value in (total / points.shape[1]).sqrt()]
