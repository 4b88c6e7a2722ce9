"""The pieces of logistic regression for compiled loops on bounded terms; float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.models.logistic_native import log_lik_of_all, log_prior, log_sigmoid
from mhrun.native import NativeBounds, NativeLowerBound, piece, routine
from mhrun.native.forms import GAP_ROUNDING
from mhrun.native.maths import exp_negative_64

# Bounds on |f'|, |f''| and |f'''| of f(eta) = log p(y | eta), eta = x.theta (Cornish et al. 2019).
DERIVATIVES = (1.0, 1 / 4, 1 / (6 * math.sqrt(3)))
UNTUNED = 1.5  # |y x.theta| at which untuned lower bounds touch
TINY = 1e-8  # tanh(xi / 2) / (4 xi) is 1/8 to rounding below it


def bound_pieces(
    x: npt.NDArray[Any], y: npt.NDArray[Any], scale: float, precision: float, order: int, surrogate: Any
) -> NativeBounds:
    """Return the pieces for x (n, D) and y (n,), +1 or -1.

    Args:
        x: the rows.
        y: the labels.
        scale: factor applied to x.
        precision: prior precision of each weight.
        order: of the surrogate; 0 for none.
        surrogate: its `Sums`, or None.
    """
    dim = x.shape[1]
    zero = np.zeros(1, x.dtype if x.dtype.kind == "f" else np.float32)
    anchor, inverse, gradient, hessian = np.zeros(dim), np.eye(dim), np.zeros(dim), np.zeros((dim, dim))
    eta = np.zeros(len(x) if order else 1)
    if surrogate is not None:
        anchor, root = surrogate.reference.theta.numpy(), surrogate.reference.root.numpy()
        inverse = np.ascontiguousarray(np.linalg.inv(root).T)
        gradient, hessian = surrogate.gradient.numpy(), surrogate.hessian.numpy()
        eta = np.concatenate([part @ (anchor * scale) for part in np.array_split(x, max(1, len(x) >> 16))])
    args = (
        np.ascontiguousarray(x),
        y,
        zero,
        scale,
        precision,
        order,
        anchor,
        inverse,
        gradient,
        hessian,
        eta,
    )
    gradients = (bound_slope, _remainder) if order else ()
    return NativeBounds(
        args, log_prior, bound_width, _terms, log_lik_of_all, _size, taylor_difference, *gradients
    )


def lower_bound_pieces(
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    scale: float,
    precision: float,
    sums: Any,
    untuned: float,
    least: float,
) -> NativeLowerBound:
    """Return the pieces of the lower bounds of x (n, D) and y (n,), +1 or -1.

    Args:
        x: the rows.
        y: the labels.
        scale: factor applied to x.
        precision: prior precision of each weight.
        sums: the `Sums` of all bounds.
        untuned: where all bounds touch; 0 for where the anchor is.
        least: smallest |z| at which a bound touches.
    """
    anchor, gradient, hessian = sums.reference.theta.numpy(), sums.gradient.numpy(), sums.hessian.numpy()
    eta = np.concatenate([part @ (anchor * scale) for part in np.array_split(x, max(1, len(x) >> 16))])
    xi = np.full(len(x), untuned) if untuned else np.maximum(np.abs(eta.astype(np.float64)), least)
    tangent = np.stack((xi, np.tanh(xi / 2) / (4 * xi), -np.log1p(np.exp(-xi))), -1)
    args = (np.ascontiguousarray(x), y, tangent, scale, precision, anchor, gradient, hessian)
    return NativeLowerBound(args, log_prior, _gap, total_bound)


@piece
def _gap(args: Any, i: Any, theta: Any) -> Any:
    x, y, tangent, scale = args[0], args[1], args[2], args[3]
    z = 0.0
    for d in range(len(theta)):
        z += np.float64(x[i, d]) * theta[d]
    z *= np.float64(y[i]) * scale
    xi, log_lik = tangent[i, 0], log_sigmoid(z)
    bound = tangent[i, 2] + (z - xi) / 2 - tangent[i, 1] * (z - xi) * (z + xi)
    return log_lik - bound, GAP_ROUNDING * (1 + abs(log_lik) + abs(bound))


@piece
def total_bound(args: Any, theta: Any) -> Any:
    """Return the sum of all lower bounds, up to a constant."""
    anchor, gradient, hessian = args[5], args[6], args[7]
    total = 0.0
    for d in range(len(theta)):
        slope = gradient[d]
        for e in range(len(theta)):
            slope += 0.5 * hessian[d, e] * (theta[e] - anchor[e])
        total += slope * (theta[d] - anchor[d])
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
def _terms(args: Any, index: Any, m: Any, origin: Any, candidate: Any, out: Any) -> None:
    x, y, scale, order, eta = args[0], args[1], args[3], args[5], args[10]
    for j in range(m):
        i = index[j]
        one, two = 0.0, 0.0
        for d in range(len(origin)):
            value = np.float64(x[i, d])
            one += value * origin[d]
            two += value * candidate[d]
        sign = np.float64(y[i])
        one, two = sign * scale * one, sign * scale * two
        term = log_sigmoid(two) - log_sigmoid(one)
        if order > 0:
            at = sign * eta[i]
            e = exp_negative_64(-abs(at))
            share = (e if at > 0 else 1.0) / (1.0 + e)  # sigmoid(-at), the derivative
            term -= share * (two - one)
            if order == 2:
                term += 0.5 * share * (1 - share) * ((two - at) * (two - at) - (one - at) * (one - at))
        out[j] = term


@routine
def _size(args: Any, i: Any, origin: Any, candidate: Any) -> Any:
    x, y, scale, order, eta = args[0], args[1], args[3], args[5], args[10]
    sign, total = np.float64(y[i]), 0.0
    for theta in (origin, candidate):
        z = 0.0
        for d in range(len(theta)):
            z += np.float64(x[i, d]) * theta[d]
        z *= sign * scale
        total += abs(log_sigmoid(z))
        if order > 0:
            at = sign * eta[i]
            share = 1.0 / (1.0 + math.exp(at)) if at < 700.0 else 0.0
            curve = 0.5 * share * (1 - share) * (z - at) if order == 2 else 0.0
            total += abs((share - curve) * (z - at))
    return total


@piece
def bound_slope(args: Any, theta: Any) -> Any:
    """Return the slope of the bounds, see `mhrun.models.bounds.remainder_slope`."""
    order, anchor, inverse, dim, square = args[5], args[6], args[7], len(theta), 0.0
    for e in range(dim):
        a = 0.0
        for d in range(dim):
            a += inverse[d, e] * (theta[d] - anchor[d])
        square += a * a
    return math.sqrt(square) if order == 1 else 0.5 * square


@piece
def _remainder(args: Any, i: Any, theta: Any, remainder_grad: Any, grad: Any) -> None:
    x, y, scale, order, eta = args[0], args[1], args[3], args[5], args[10]
    z, sign, at = 0.0, np.float64(y[i]), eta[i]
    for d in range(len(theta)):
        z += np.float64(x[i, d]) * theta[d]
    z, at = sign * scale * z, sign * at
    one, two = exp_negative_64(-abs(z)), exp_negative_64(-abs(at))
    share = (one if z > 0 else 1.0) / (1.0 + one)  # sigmoid(-z), the derivative
    expanded = (two if at > 0 else 1.0) / (1.0 + two)
    remainder = share - expanded
    if order == 2:
        remainder += expanded * (1 - expanded) * (z - at)
    for d in range(len(theta)):
        value = sign * scale * np.float64(x[i, d])
        remainder_grad[d] = remainder * value
        grad[d] = share * value
