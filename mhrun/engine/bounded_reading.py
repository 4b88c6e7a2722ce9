"""How many data a step of MH-SS reads, before any chain runs."""

from __future__ import annotations

import torch

from mhrun.rules.mh_ss import MHSS
from mhrun.target import Target

_PAIRS = 64  # of points
_OPTIMAL_STEP = (
    2.38  # of a random walk, in posterior standard deviations times sqrt(D) (Roberts, Gelman & Gilks 1997)
)


def data_of_a_step(target: Target) -> float:
    """Return how many data a step of MH-SS with a random walk is expected to read, at most n.

    The mean of min(n, (1 + gamma) B) over pairs of points: a draw from the normal approximation at the mode, and a
    candidate at the best step size from there. B is the sum of the bounds of all terms between the two.

    Args:
        target: with a Taylor surrogate, on a model with bounds on its remainders.

    Raises:
        UserError: no mode was found.
    """
    assert target.surrogate is not None
    center, root = target.surrogate.reference
    assert root is not None  # of a mode that was found, not stored
    generator = torch.Generator().manual_seed(0)
    normals = torch.randn(2, _PAIRS, len(center), generator=generator, dtype=torch.float64).to(center)
    origin = center + normals[0] @ root.T
    candidate = origin + _OPTIMAL_STEP / len(center) ** 0.5 * (normals[1] @ root.T)
    total = target.bounded.bounds.width(origin, candidate) * target.bounded.bounds.weights.sum()
    return float(((1 + MHSS().gamma) * total).nan_to_num(float(target.n)).clamp(max=float(target.n)).mean())
