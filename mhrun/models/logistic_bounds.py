"""The pieces of logistic regression for compiled loops on bounded terms; float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.models.linear_native import (
    bound_slope,
    bound_width,
    log_prior,
    reference_arrays,
    taylor_difference,
    total_bound,
)
from mhrun.models.logistic_native import log_lik_of_all, log_sigmoid
from mhrun.native import NativeBounds, NativeLowerBound, piece, routine
from mhrun.native.forms import GAP_ROUNDING
from mhrun.native.maths import exp_negative_64

# Bounds on |f'|, |f''| and |f'''| of f(eta) = log p(y | eta), eta = x.theta (Cornish et al. 2019).
DERIVATIVE_BOUNDS = (1.0, 1 / 4, 1 / (6 * math.sqrt(3)))


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
    zero = np.zeros(1, x.dtype if x.dtype.kind == "f" else np.float32)
    anchor, inverse, gradient, hessian = reference_arrays(x.shape[1], surrogate)
    eta = np.zeros(len(x) if order else 1)
    if surrogate is not None:
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
