"""How far from normal a posterior is about its mode."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mhrun.engine.landscape.surface import Surface
from mhrun.random import Draws, Purpose, Streams, derive_key

_DRAWS = 40
# Of them, with the least and with the greatest log-ratio, that count for nothing: some may be infinite
_TAIL = 4
_SDS = 2.56  # between the two quantiles of a normal distribution


def spread_of_log_ratio(surface: Surface, mode: Tensor, root: Tensor, key: int) -> float:
    """Return the spread of log p - log q over draws of q, the normal approximation at the mode of p, in nats.

    p is the tempered posterior, and q has the covariance T H^-1 = T S S^T with H minus the Hessian. The spread is the
    distance of the 10 % and 90 % quantiles, divided by that of a standard normal distribution. It is 0 where p is
    normal, well below 1 where q has the right scale, and large where p falls off sooner or later than q, as in a curved
    ridge.

    Args:
        surface: log p; what is evaluated is added to its count.
        mode: the highest point of the surface (D,).
        root: S (D, D).
        key: of the random numbers.
    """
    z = Draws(Streams(derive_key(key, "normality"), _DRAWS), 0).normal(Purpose.INIT, len(mode)).double()
    offsets = surface.temperature**0.5 * z @ root.T
    points = torch.cat([mode[None], mode + offsets.to(mode)])
    heights = surface.value_and_grad(points)[0].cpu()
    log_ratios = (heights[1:] - heights[0]) / surface.temperature + z.square().sum(1) / 2
    log_ratios = log_ratios.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).sort().values
    spread = float(log_ratios[-1 - _TAIL] - log_ratios[_TAIL]) / _SDS
    return spread if spread == spread else math.inf  # NaN: nearly all draws of q are outside of the support
