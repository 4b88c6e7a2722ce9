"""The pieces of logistic regression for fused loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.native import NativeModel, piece
from mhrun.native.maths import exp_negative_64, log1p_unit_64

_FLUSH = 256  # gradients summed in the precision of the data before the float64 sum takes over


def pieces(x: npt.NDArray[Any], y: npt.NDArray[Any], scale: float, precision: float) -> NativeModel:
    """Return the pieces for x (n, D) and y (n,), +1 or -1.

    Args:
        x: the rows; products with them have their precision, float32 for whole numbers.
        y: the labels.
        scale: what a number of x is multiplied by.
        precision: of the prior of each weight; 0 for a flat one.
    """
    zero = np.zeros(1, x.dtype if x.dtype.kind == "f" else np.float32)
    args = (np.ascontiguousarray(x), y, zero, scale, precision)
    return NativeModel(args, _log_prior, _difference, _moments, _total, _gradient, _prior_gradient)


@piece
def _log_sigmoid(z: Any) -> Any:
    return min(z, 0.0) - log1p_unit_64(exp_negative_64(-abs(z)))


@piece
def _log_prior(args: Any, theta: Any) -> Any:
    square = 0.0
    for d in range(len(theta)):
        square += theta[d] * theta[d]
    return -0.5 * args[4] * square


@piece
def _prior_gradient(args: Any, theta: Any, out: Any) -> None:
    for d in range(len(theta)):
        out[d] = -args[4] * theta[d]


# A product begins with zero[0] and its operands are arrays of that type, so that it has the precision of the
# data in machine code and in plain Python alike.


@piece
def _rounded(theta: Any, scale: Any, zero: Any) -> Any:
    weights = np.empty(len(theta), zero.dtype)
    for d in range(len(theta)):
        weights[d] = theta[d] * scale
    return weights


@piece
def _read(x: Any, i: Any, row: Any) -> None:
    for d in range(len(row)):
        row[d] = x[i, d]


@piece
def _product(weights: Any, row: Any, zero: Any) -> Any:
    total = zero[0]
    for d in range(len(row)):
        total += weights[d] * row[d]
    return np.float64(total)


@piece
def _difference(args: Any, index: Any, m: Any, origin: Any, candidate: Any) -> Any:
    x, y, zero, scale = args[0], args[1], args[2], args[3]
    here, there = _rounded(origin, scale, zero), _rounded(candidate, scale, zero)
    row = np.empty_like(here)
    total, square = 0.0, 0.0
    for j in range(m):
        _read(x, index[j], row)
        sign = np.float64(y[index[j]])
        gain = _log_sigmoid(sign * _product(there, row, zero)) - _log_sigmoid(
            sign * _product(here, row, zero)
        )
        total += gain
        square += gain * gain
    return total, square


@piece
def _moments(args: Any, index: Any, m: Any, theta: Any) -> Any:
    x, y, zero, scale = args[0], args[1], args[2], args[3]
    weights = _rounded(theta, scale, zero)
    row = np.empty_like(weights)
    total, square = 0.0, 0.0
    for j in range(m):
        _read(x, index[j], row)
        value = _log_sigmoid(np.float64(y[index[j]]) * _product(weights, row, zero))
        total += value
        square += value * value
    return total, square


@piece
def _total(args: Any, theta: Any) -> Any:
    x, y, zero, scale = args[0], args[1], args[2], args[3]
    weights = _rounded(theta, scale, zero)
    row = np.empty_like(weights)
    total = 0.0
    for i in range(len(x)):
        _read(x, i, row)
        total += _log_sigmoid(np.float64(y[i]) * _product(weights, row, zero))
    return total


@piece
def _gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
    x, y, zero, scale = args[0], args[1], args[2], args[3]
    weights = _rounded(theta, scale, zero)
    row, part, slope = np.empty_like(weights), np.zeros_like(weights), np.zeros_like(zero)
    for d in range(len(out)):
        out[d] = 0.0
    for j in range(m):
        _read(x, index[j], row)
        sign = np.float64(y[index[j]])
        z = sign * _product(weights, row, zero)
        e = exp_negative_64(-abs(z))
        slope[0] = sign * scale * (e if z > 0 else 1.0) / (1.0 + e)  # of log-sigmoid: sigmoid(-z)
        factor = slope[0]
        for d in range(len(out)):
            part[d] += factor * row[d]
        if j % _FLUSH == _FLUSH - 1 or j == m - 1:
            for d in range(len(out)):
                out[d] += part[d]
                part[d] = zero[0]
