"""Pieces that the compiled forms of all regressions share; float64.

Those of the bounds read the places of ``args`` from the sixth on: order, anchor, inverse, gradient and hessian, see
`reference_arrays`; the prior's read the fifth, its precision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mhrun.array_types import Array
from mhrun.native import Piece, piece

_TILE = 256  # rows at a time


def reference_arrays(dim: int, surrogate: Any) -> tuple[Array, Array, Array, Array]:
    """Return anchor (D,), inverse (D, D), gradient (D,) and hessian (D, D) of a surrogate.

    The columns of the inverse are the coordinates in which the distances of bounds are taken. Without a surrogate the
    anchor is 0 and distances are Euclidean.

    Args:
        dim: D.
        surrogate: its `Sums`, or None.
    """
    if surrogate is None:
        return np.zeros(dim), np.eye(dim), np.zeros(dim), np.zeros((dim, dim))
    anchor, root = surrogate.reference.theta.numpy(), surrogate.reference.root.numpy()
    inverse = np.ascontiguousarray(np.linalg.inv(root).T)
    return anchor, inverse, surrogate.gradient.numpy(), surrogate.hessian.numpy()


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


# Four rows at a time, so that each weight is loaded, and each sum stored, once for four rows. There are separate loops
# for one point and for two, written out so that the compiler keeps the sums in registers.


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
def add_rows(x: Any, index: Any, m: Any, factors: Any, out: Any) -> None:
    """Add factors[j] x[index[j]] to out (D,), for j < m."""
    fours = m // 4 * 4
    for j in range(0, fours, 4):
        p, q, r, s = x[index[j]], x[index[j + 1]], x[index[j + 2]], x[index[j + 3]]
        a, b, c, d = factors[j], factors[j + 1], factors[j + 2], factors[j + 3]
        for k in range(len(out)):
            out[k] += (a * p[k] + b * q[k]) + (c * r[k] + d * s[k])
    for j in range(fours, m):
        p, a = x[index[j]], factors[j]
        for k in range(len(out)):
            out[k] += a * p[k]


def difference_of(terms: Piece) -> Piece:
    """Return the piece `difference` of a `NativeModel` from its piece `terms`."""

    def difference(args: Any, index: Any, m: Any, origin: Any, candidate: Any) -> Any:
        each = np.empty(m)
        terms(args, index, m, origin, candidate, each)
        total, square = 0.0, 0.0
        for j in range(m):
            total += each[j]
            square += each[j] * each[j]
        return total, square

    return difference


def full_pass_stats_of(terms: Piece) -> Piece:
    """Return the piece `full_pass_stats` of a `NativeModel` from its piece `terms`."""

    def full_pass_stats(args: Any, origin: Any, candidate: Any) -> Any:
        n = len(args[0])
        index, each = np.empty(_TILE, np.int64), np.empty(_TILE)
        total, square, largest = 0.0, 0.0, 0.0
        for start in range(0, n, _TILE):
            size = min(_TILE, n - start)
            for j in range(size):
                index[j] = start + j
            terms(args, index, size, origin, candidate, each)
            for j in range(size):
                total += each[j]
                square += each[j] * each[j]
                largest = max(largest, abs(each[j]))
        return total, square, largest

    return full_pass_stats


def total_of(moments: Piece) -> Piece:
    """Return the piece `total` of a `NativeModel` from its piece `moments`."""

    def total(args: Any, theta: Any) -> Any:
        n, index, log_lik = len(args[0]), np.empty(_TILE, np.int64), 0.0
        for start in range(0, n, _TILE):
            size = min(_TILE, n - start)
            for j in range(size):
                index[j] = start + j
            log_lik += moments(args, index, size, theta)[0]
        return log_lik

    return total


@piece
def norms(inverse: Any, anchor: Any, origin: Any, candidate: Any) -> Any:
    """Return |candidate - origin|, |origin - anchor| and |candidate - anchor| in the metric."""
    dim = len(origin)
    step, one, two = 0.0, 0.0, 0.0
    for e in range(dim):
        a, b = 0.0, 0.0
        for d in range(dim):
            a += inverse[d, e] * (origin[d] - anchor[d])
            b += inverse[d, e] * (candidate[d] - anchor[d])
        step += (b - a) * (b - a)
        one += a * a
        two += b * b
    return math.sqrt(step), math.sqrt(one), math.sqrt(two)


@piece
def bound_width(args: Any, origin: Any, candidate: Any) -> Any:
    """Return the width of the bounds, see `mhrun.models.bounds.remainder_width`."""
    order = args[5]
    step, a, b = norms(args[7], args[6], origin, candidate)
    if order == 0:
        return step
    if order == 1:
        return min(a * a + b * b, step * (a + b)) / 2
    return min(a * a * a + b * b * b, step * (a * a + b * b + a * b)) / 6


@piece
def bound_slope(args: Any, theta: Any) -> Any:
    """Return the derivative of the width in the length of a short move, see `mhrun.models.bounds.remainder_slope`."""
    order, anchor, inverse, dim, square = args[5], args[6], args[7], len(theta), 0.0
    for e in range(dim):
        a = 0.0
        for d in range(dim):
            a += inverse[d, e] * (theta[d] - anchor[d])
        square += a * a
    return math.sqrt(square) if order == 1 else 0.5 * square


@piece
def taylor_difference(args: Any, origin: Any, candidate: Any) -> Any:
    """Return the difference of the surrogate's part, summed over all data."""
    order, anchor, gradient, hessian = args[5], args[6], args[8], args[9]
    dim, total = len(origin), 0.0
    if order == 0:
        return total
    for d in range(dim):
        total += gradient[d] * (candidate[d] - origin[d])
    if order == 2:
        for d in range(dim):
            one, two = 0.0, 0.0
            for e in range(dim):
                one += hessian[d, e] * (origin[e] - anchor[e])
                two += hessian[d, e] * (candidate[e] - anchor[e])
            total += 0.5 * (two * (candidate[d] - anchor[d]) - one * (origin[d] - anchor[d]))
    return total


@piece
def total_bound(args: Any, theta: Any) -> Any:
    """Return the sum of all lower bounds, up to a constant."""
    anchor, gradient, hessian = args[5], args[6], args[7]
    total = 0.0
    for d in range(len(theta)):
        factor = gradient[d]
        for e in range(len(theta)):
            factor += 0.5 * hessian[d, e] * (theta[e] - anchor[e])
        total += factor * (theta[d] - anchor[d])
    return total
