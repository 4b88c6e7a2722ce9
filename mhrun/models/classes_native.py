"""The likelihoods of `mhrun.models.classes` in compiled loops.

Each is ``(logits (m, K), y (m,), log_lik (m,), grad (m, K)) -> bool``: it fills the last two and returns whether every
class has an output. Arrays are float32, or float64 of those in `NATIVE_64`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mhrun.models.classes import HIGHEST, LOWEST
from mhrun.native import Piece, piece, routine
from mhrun.native.maths import exp_negative_32

f32, f64 = np.float32, np.float64

_LOWEST, _HIGHEST = f32(LOWEST), f32(HIGHEST)


@piece
def _fill_exponentials(logits: Any, j: Any, exponentials: Any) -> Any:
    """Fill exponentials[j] with exp(logits[j] - largest); return the largest and the sum. One NaN makes all NaN."""
    classes = logits.shape[1]
    highest, nonfinite = logits[j, 0], f32(0)
    for k in range(classes):
        highest = max(highest, logits[j, k])
        nonfinite += logits[j, k] * f32(0)
    total = f32(0)
    if nonfinite == f32(0):
        for k in range(classes):
            e = exp_negative_32(logits[j, k] - highest)
            exponentials[j, k] = e
            total += e
    else:  # an infinity or NaN, which the polynomial would make an integer
        for k in range(classes):
            if math.isnan(logits[j, k]):
                highest = logits[j, k]
        for k in range(classes):
            e = f32(math.exp(logits[j, k] - highest))
            exponentials[j, k] = e
            total += e
    return highest, total


@routine
def categorical(logits: Any, y: Any, log_lik: Any, grad: Any) -> Any:
    """Fill in log p_y, with p the softmax of the outputs, and 1{k = y} - p_k."""
    classes = logits.shape[1]
    for j in range(len(logits)):
        highest, total = _fill_exponentials(logits, j, grad)
        for k in range(classes):
            grad[j, k] *= f32(-1) / total
        label = y[j]
        if not 0 <= label < classes:
            return False
        grad[j, label] += f32(1)
        # In float64, as sums may be re-associated, and outputs much larger than their differences.
        log_lik[j] = f64(logits[j, label]) - f64(highest) - math.log(f64(total))
    return True


@routine
def categorical_64(logits: Any, y: Any, log_lik: Any, grad: Any) -> Any:
    """Do what `categorical` does, in float64."""
    classes = logits.shape[1]
    for j in range(len(logits)):
        highest, total = logits[j, 0], 0.0
        for k in range(classes):
            highest = max(highest, logits[j, k])
        for k in range(classes):
            e = math.exp(logits[j, k] - highest)
            grad[j, k] = e
            total += e
        for k in range(classes):
            grad[j, k] *= -1.0 / total
        label = y[j]
        if not 0 <= label < classes:
            return False
        grad[j, label] += 1.0
        log_lik[j] = logits[j, label] - highest - math.log(total)
    return True


@routine
def clipped_binary(logits: Any, y: Any, log_lik: Any, grad: Any) -> Any:
    """Fill in log p_y + sum over the other classes of log(1 - p), probabilities clipped, and its gradient."""
    classes = logits.shape[1]
    for j in range(len(logits)):
        _, total = _fill_exponentials(logits, j, grad)
        label = y[j]
        if not 0 <= label < classes:
            return False
        value, mean = 0.0, f32(0)
        for k in range(classes):
            p = grad[j, k] / total
            clipped = _LOWEST if p < _LOWEST else (_HIGHEST if p > _HIGHEST else p)
            chance = clipped if k == label else f32(1) - clipped
            value += math.log(f64(chance))
            if _LOWEST <= p <= _HIGHEST:
                mean += p / chance if k == label else -p / chance
        for k in range(classes):
            p = grad[j, k] / total
            derivative = f32(0)
            if _LOWEST <= p <= _HIGHEST:
                derivative = f32(1) / p if k == label else f32(-1) / (f32(1) - p)
            grad[j, k] = p * (derivative - mean)
        log_lik[j] = value
    return True


NATIVE: Mapping[str, Piece] = {"categorical": categorical, "clipped_binary": clipped_binary}
NATIVE_64: Mapping[str, Piece] = {"categorical": categorical_64}
