"""The pieces of logistic regression for compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.native import NativeModel, piece
from mhrun.native.maths import exp_negative_64, log1p_unit_64

_TILE = 256  # rows at a time
_FLUSH = 256  # gradients summed in the precision of the data before being added to the float64 sum


def pieces(x: npt.NDArray[Any], y: npt.NDArray[Any], scale: float, precision: float) -> NativeModel:
    """Return the pieces for x (n, D) and y (n,), +1 or -1.

    Args:
        x: the rows; products with them have their precision, float32 for integers.
        y: the labels.
        scale: factor applied to x.
        precision: prior precision of each weight; 0 for a flat prior.
    """
    zero = np.zeros(1, x.dtype if x.dtype.kind == "f" else np.float32)
    args = (np.ascontiguousarray(x), y, zero, scale, precision)
    return NativeModel(
        args,
        log_prior=log_prior,
        difference=_difference,
        moments=_moments,
        total=log_lik_of_all,
        gradient=_gradient,
        prior_gradient=prior_gradient,
        terms=_terms,
        full_pass_stats=_full_pass_stats,
    )


@piece
def log_sigmoid(z: Any) -> Any:
    """Return log(1 / (1 + exp(-z)))."""
    return min(z, 0.0) - log1p_unit_64(exp_negative_64(-abs(z)))


@piece
def log_prior(args: Any, theta: Any) -> Any:
    """Return the log density of the normal prior, without its constant."""
    square = 0.0
    for d in range(len(theta)):
        square += theta[d] * theta[d]
    return -0.5 * args[4] * square


@piece
def prior_gradient(args: Any, theta: Any, out: Any) -> None:
    """Fill out (D,) with the gradient of the log density of the normal prior."""
    for d in range(len(theta)):
        out[d] = -args[4] * theta[d]


# A product is accumulated from zero[0] with operands of its type, so that it has the precision of the data both
# compiled and in plain Python.


@piece
def rounded(theta: Any, scale: Any, zero: Any) -> Any:
    """Return theta times scale in the precision of `zero`."""
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


# Four rows at a time, so that each weight is loaded once for four rows. There are separate loops for one point and for
# two, written out so that the compiler keeps the sums in registers.


@piece
def products(x: Any, index: Any, m: Any, w: Any, zero: Any, out: Any) -> None:
    """out[j] = w . x[index[j]] for j < m."""
    fours = m // 4 * 4
    for j in range(0, fours, 4):
        p, q, r, s = x[index[j]], x[index[j + 1]], x[index[j + 2]], x[index[j + 3]]
        a, b, c, d = zero[0], zero[0], zero[0], zero[0]
        for k in range(len(w)):
            a += w[k] * p[k]
            b += w[k] * q[k]
            c += w[k] * r[k]
            d += w[k] * s[k]
        out[j], out[j + 1], out[j + 2], out[j + 3] = a, b, c, d
    for j in range(fours, m):
        p = x[index[j]]
        a = zero[0]
        for k in range(len(w)):
            a += w[k] * p[k]
        out[j] = a


@piece
def product_pairs(x: Any, index: Any, m: Any, v: Any, w: Any, zero: Any, out: Any, other: Any) -> None:
    """out[j] and other[j] = v . x and w . x of x[index[j]] for j < m."""
    fours = m // 4 * 4
    for j in range(0, fours, 4):
        p, q, r, s = x[index[j]], x[index[j + 1]], x[index[j + 2]], x[index[j + 3]]
        a, b, c, d = zero[0], zero[0], zero[0], zero[0]
        e, f, g, h = zero[0], zero[0], zero[0], zero[0]
        for k in range(len(w)):
            a += v[k] * p[k]
            e += w[k] * p[k]
            b += v[k] * q[k]
            f += w[k] * q[k]
            c += v[k] * r[k]
            g += w[k] * r[k]
            d += v[k] * s[k]
            h += w[k] * s[k]
        out[j], out[j + 1], out[j + 2], out[j + 3] = a, b, c, d
        other[j], other[j + 1], other[j + 2], other[j + 3] = e, f, g, h
    for j in range(fours, m):
        p = x[index[j]]
        a, e = zero[0], zero[0]
        for k in range(len(w)):
            a += v[k] * p[k]
            e += w[k] * p[k]
        out[j], other[j] = a, e


@piece
def _terms(args: Any, index: Any, m: Any, origin: Any, candidate: Any, out: Any) -> None:
    x, y, zero, scale = args[0], args[1], args[2], args[3]
    origin_weights, candidate_weights = rounded(origin, scale, zero), rounded(candidate, scale, zero)
    before = np.empty(_TILE)
    for start in range(0, m, _TILE):
        size = min(_TILE, m - start)
        part = out[start : start + size]
        product_pairs(x, index[start:], size, origin_weights, candidate_weights, zero, before, part)
        for j in range(size):
            sign = np.float64(y[index[start + j]])
            part[j] = log_sigmoid(sign * part[j]) - log_sigmoid(sign * before[j])


@piece
def _difference(args: Any, index: Any, m: Any, origin: Any, candidate: Any) -> Any:
    terms = np.empty(m)
    _terms(args, index, m, origin, candidate, terms)
    total, square = 0.0, 0.0
    for j in range(m):
        total += terms[j]
        square += terms[j] * terms[j]
    return total, square


@piece
def _full_pass_stats(args: Any, origin: Any, candidate: Any) -> Any:
    n = len(args[0])
    index, terms = np.empty(_TILE, np.int64), np.empty(_TILE)
    total, square, largest = 0.0, 0.0, 0.0
    for start in range(0, n, _TILE):
        size = min(_TILE, n - start)
        for j in range(size):
            index[j] = start + j
        _terms(args, index, size, origin, candidate, terms)
        for j in range(size):
            total += terms[j]
            square += terms[j] * terms[j]
            largest = max(largest, abs(terms[j]))
    return total, square, largest


@piece
def _moments(args: Any, index: Any, m: Any, theta: Any) -> Any:
    x, y, zero, scale = args[0], args[1], args[2], args[3]
    weights = rounded(theta, scale, zero)
    values = np.empty(_TILE)
    total, square = 0.0, 0.0
    for start in range(0, m, _TILE):
        size = min(_TILE, m - start)
        products(x, index[start:], size, weights, zero, values)
        for j in range(size):
            value = log_sigmoid(np.float64(y[index[start + j]]) * values[j])
            total += value
            square += value * value
    return total, square


@piece
def log_lik_of_all(args: Any, theta: Any) -> Any:
    """Return the log-likelihood of all data."""
    n = len(args[0])
    index = np.empty(_TILE, np.int64)
    total = 0.0
    for start in range(0, n, _TILE):
        size = min(_TILE, n - start)
        for j in range(size):
            index[j] = start + j
        total += _moments(args, index, size, theta)[0]
    return total


@piece
def _gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
    x, y, zero, scale = args[0], args[1], args[2], args[3]
    weights = rounded(theta, scale, zero)
    row, part, grad = np.empty_like(weights), np.zeros_like(weights), np.zeros_like(zero)
    for d in range(len(out)):
        out[d] = 0.0
    for j in range(m):
        _read(x, index[j], row)
        sign = np.float64(y[index[j]])
        z = sign * _product(weights, row, zero)
        e = exp_negative_64(-abs(z))
        grad[0] = sign * scale * (e if z > 0 else 1.0) / (1.0 + e)  # of log-sigmoid: sigmoid(-z)
        factor = grad[0]
        for d in range(len(out)):
            part[d] += factor * row[d]
        if j % _FLUSH == _FLUSH - 1 or j == m - 1:
            for d in range(len(out)):
                out[d] += part[d]
                part[d] = zero[0]
