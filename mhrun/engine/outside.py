"""Whether the draws of a dynamics left the support of the prior."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from mhrun.engine.kept_draws import some_draws
from mhrun.engine.method import Method
from mhrun.kernels import Unadjusted

OUTSIDE = "outside"  # in a summary
_MOST, _NUMBERS = 4_000, 1 << 24  # draws that are looked at, and their numbers


@torch.no_grad()
def share_outside(method: Method, folder: Path) -> float | None:
    """Return the share of draws at which the prior density is 0.

    Gradients keep no chain inside of an edge at which the density jumps to 0, whatever the step size, and nothing
    rejects a step across it.

    Args:
        method: whose steps have ended.
        folder: with its trace.

    Returns:
        None for another kernel than a dynamics, for an optimiser, if no draws were kept, and if no draw is outside.
    """
    kernel = method.kernel
    if not isinstance(kernel.of_a_chain, Unadjusted) or kernel.optimises or method.shape.thin is None:
        return None
    _, temperatures = method.plan.at_collected_steps()
    cold = np.flatnonzero(temperatures == temperatures.min())
    count = max(1, min(_MOST, _NUMBERS // method.target.dim))
    draws = some_draws(method, folder, cold, count, fewest=1)
    if draws is None:
        return None
    # In float64: far out, where chains diverged, a density that is not 0 has no logarithm in float32.
    points = draws.reshape(-1, draws.shape[-1]).to(method.target.device)
    points = points[points.isfinite().all(1)]
    share = (
        float(torch.isneginf(method.target.model.log_prior(points)).double().mean()) if len(points) else 0.0
    )
    return share or None
