"""The quadratic lower bound of log sigmoid(z) by Jaakkola & Jordan (1997), which models with a logit link share.

    log sigmoid(z) >= log sigmoid(xi) + (z - xi) / 2 - c(xi) (z^2 - xi^2),   c(xi) = tanh(xi / 2) / (4 xi),

with equality at |z| = xi.
"""

from __future__ import annotations

import torch
from torch import Tensor

UNTUNED_XI = 1.5  # |z| at which untuned lower bounds touch (Maclaurin & Adams 2015)
SMALLEST_XI = 1e-8  # c(xi) is 1/8 to rounding below it, and 0 / 0 at 0


def touching_points(z: Tensor, x: Tensor, anchor: Tensor | None) -> Tensor:
    """Return xi of the bounds at z (C, m): |x.anchor| for an anchor (D,), or that of untuned bounds without one."""
    if anchor is None:
        return torch.full_like(z, UNTUNED_XI)
    return (x @ anchor).abs().clamp_min(SMALLEST_XI).expand_as(z)


def curvature(xi: Tensor) -> Tensor:
    """Return c(xi) = tanh(xi / 2) / (4 xi), of the shape of xi."""
    return torch.tanh(xi / 2) / (4 * xi)
