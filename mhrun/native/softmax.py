"""Log-probabilities of classes and their gradient in one pass, where torch needs eight."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mhrun.native.compiler import Piece, available, compiled
from mhrun.native.maths import exp_negative_32

MANY = 500  # outputs of a chain from which on compiling pays

f32, f64 = np.float32, np.float64


def is_compiled(logits: Tensor) -> bool:
    """Return whether the compiled pass supports outputs (C, m, K): many in float32, on a CPU with numba."""
    return (
        logits.shape[1] * logits.shape[2]
        >= MANY  # whatever the number of chains, which must not change their numbers
        and logits.device.type == "cpu"
        and logits.dtype == torch.float32
        and logits.is_contiguous()
        and available()
        and not logits.requires_grad
        and not isinstance(logits, FakeTensor)
    )


def log_p_and_grad(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y (C, m) and its gradient by the outputs (C, m, K), p their softmax; see `is_compiled`."""
    chains, m, classes = logits.shape
    log_p, grad = torch.empty(chains, m), torch.empty(chains, m, classes)
    _pass()(logits.numpy(), y.expand(chains, m).numpy(), log_p.numpy(), grad.numpy())
    return log_p, grad


@lru_cache(maxsize=1)
def _pass() -> Piece:
    def loop(logits: Any, y: Any, log_p: Any, grad: Any) -> None:
        classes = logits.shape[2]
        for c in range(logits.shape[0]):
            for j in range(logits.shape[1]):
                highest, mark = logits[c, j, 0], f32(0)
                for k in range(classes):
                    highest = max(highest, logits[c, j, k])
                    mark += logits[c, j, k] * f32(0)
                total = f32(0)
                if mark == f32(0):
                    for k in range(classes):
                        e = exp_negative_32(logits[c, j, k] - highest)
                        grad[c, j, k] = e
                        total += e
                else:  # an infinity or NaN, which the polynomial would lose
                    for k in range(classes):
                        if math.isnan(logits[c, j, k]):
                            highest = logits[c, j, k]
                    for k in range(classes):
                        e = f32(math.exp(logits[c, j, k] - highest))
                        grad[c, j, k] = e
                        total += e
                for k in range(classes):
                    grad[c, j, k] *= f32(-1) / total
                right = y[c, j]
                grad[c, j, right] += f32(1)
                # In float64, as sums may be re-associated, and outputs much larger than their differences.
                log_p[c, j] = f64(logits[c, j, right]) - f64(highest) - math.log(f64(total))

    return compiled(loop)
