"""Whether the draws of a dynamics left the support of the posterior."""

from __future__ import annotations

import torch
import xarray as xr
from torch import Tensor

from mhrun.engine.diagnosis.kept_draws import cold_draws
from mhrun.engine.diagnosis.sampled_gradients import SampledGradients
from mhrun.engine.method import Method

OUTSIDE = "outside"  # in a summary
_MAX_DRAWS, _MAX_NUMBERS = 4_000, 1 << 24  # draws that are looked at, and their numbers
# Median distances from the median, beyond which a chain has diverged, and a logarithm may overflow
_DIVERGED_DISTANCE = 100.0


@torch.no_grad()
def share_outside(method: Method, trace: xr.DataTree, sampled: SampledGradients | None) -> float | None:
    """Return the share of draws at which the prior, or the posterior, has the density 0.

    Gradients keep no chain inside of an edge at which the density jumps to 0, whatever the step size, and nothing
    rejects a step across it.

    Args:
        method: whose steps have ended.
        trace: with its draws.
        sampled: the log posterior at some draws, if it was computed.

    Returns:
        None for another kernel than a dynamics, for an optimiser, if no draws were kept, and if no draw is outside.
    """
    count = max(1, min(_MAX_DRAWS, _MAX_NUMBERS // method.target.dim))
    if (draws := cold_draws(method, trace, count, fewest=1)) is None:
        return None
    # In float64: far out a density that is not 0 has no logarithm in float32.
    points = draws.reshape(-1, draws.shape[-1])
    log_prior = method.target.model.log_prior(points.to(method.target.device)).cpu()
    shares = [_share(points, log_prior)]
    if sampled is not None:
        shares.append(_share(sampled.draws.reshape(-1, sampled.draws.shape[-1]), sampled.height))
    return max(shares) or None


def _share(points: Tensor, log_density: Tensor) -> float:
    """Return the share of points (S, D) at which a log density (S,) is minus infinity, without those very far out."""
    inside = points[log_density.isfinite()]
    if not len(inside):
        return 0.0
    center = inside.median(0).values
    distance = (inside - center).abs().median(0).values
    near = ((points - center).abs() <= _DIVERGED_DISTANCE * distance).all(1)
    return float(torch.isneginf(log_density[near]).double().mean()) if bool(near.any()) else 0.0
