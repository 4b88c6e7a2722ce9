"""Checks whether compiled loops can read tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mhrun.native.compiler import available


def fit_for_loops(*tensors: Tensor) -> bool:
    """Return whether compiled loops can read the tensors: contiguous, on a CPU with numba, without gradients.

    They have values, unlike those of a step that is recorded, and no dispatch mode has to see what is done with them.
    """
    if not available() or torch._C._len_torch_dispatch_stack():
        return False
    return all(
        t.device.type == "cpu" and t.is_contiguous() and not t.requires_grad and not isinstance(t, FakeTensor)
        for t in tensors
    )
