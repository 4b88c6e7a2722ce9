"""Checks whether compiled loops can read tensors."""

from __future__ import annotations

from torch import Tensor

from mhrun.native.compiler import available
from mhrun.torch_private import count_dispatch_modes, is_fake


def fit_for_loops(*tensors: Tensor) -> bool:
    """Return whether compiled loops can read the tensors: contiguous, on a CPU with numba, without gradients.

    They have values, unlike those of a step that is recorded, and no dispatch mode has to see what is done with them.
    """
    if not available() or count_dispatch_modes():
        return False
    return all(
        t.device.type == "cpu" and t.is_contiguous() and not t.requires_grad and not is_fake(t)
        for t in tensors
    )
