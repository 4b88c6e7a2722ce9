"""Log-probabilities of classes and their gradient in one pass, where torch needs eight."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import UserError
from mhrun.native.compiler import Piece, compiled
from mhrun.native.maths import exp_negative_32
from mhrun.native.tensors import fit_for_loops

MANY = 500  # outputs of a chain from which on compiling pays

f32, f64 = np.float32, np.float64


def is_compiled(logits: Tensor) -> bool:
    """Return whether the compiled pass is for outputs (C, m, K): float32, m K at least 500, see `fit_for_loops`.

    The number of chains has no influence, because a chain's results must not depend on it.
    """
    many = logits.shape[1] * logits.shape[2] >= MANY
    return many and logits.dtype == torch.float32 and fit_for_loops(logits)


def log_p_and_grad(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return log p_y (C, m) and its gradient 1{k = y} - p_k by the outputs (C, m, K), p = softmax of the outputs.

    Args:
        logits: the outputs, for which `is_compiled` holds.
        y: classes (C or 1, m), int64.

    Raises:
        UserError: a class that is negative, or K or more.
    """
    chains, m, classes = logits.shape
    log_p, grad = torch.empty(chains, m), torch.empty(chains, m, classes)
    y = y.expand(chains, m)
    if not _pass()(logits.numpy(), y.numpy(), log_p.numpy(), grad.numpy()):
        wrong = y[(y < 0) | (y >= classes)][0]
        raise UserError(f"y holds the class {wrong}; with {classes} outputs, classes are 0 to {classes - 1}.")
    return log_p, grad


@lru_cache(maxsize=1)
def _pass() -> Piece:
    def loop(logits: Any, y: Any, log_p: Any, grad: Any) -> bool:
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
                if not 0 <= right < classes:
                    return False
                grad[c, j, right] += f32(1)
                # In float64, as sums may be re-associated, and outputs much larger than their differences.
                log_p[c, j] = f64(logits[c, j, right]) - f64(highest) - math.log(f64(total))
        return True

    return compiled(loop)
