"""The pieces of softmax regression for compiled loops; float64.

``args`` are x (n, F), y (n,), the number of classes K, the zero of `products`, the precision of the prior, and those of
`mhrun.models.linear_native` from the sixth on: order, anchor, inverse, gradient, hessian, and the expansion
(n, 2, K), logits and probabilities of the classes at the anchor. Weights are theta[k F + d] of class k and feature d.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mhrun.array_types import Array
from mhrun.models.linear_native import (
    add_rows,
    bound_slope,
    bound_width,
    difference_of,
    full_pass_stats_of,
    log_prior,
    prior_gradient,
    products,
    reference_arrays,
    taylor_difference,
    total_bound,
    total_of,
)
from mhrun.models.tiles_native import TILE, add_tile, tile_products, tiles_of
from mhrun.native import NativeBounds, NativeLowerBound, NativeModel, piece, routine
from mhrun.native.compiler import piece_once
from mhrun.native.forms import GAP_ROUNDING
from mhrun.native.maths import exp_negative_64, log_64

_TILE = 128  # rows at a time


def native_model(x: Array, y: Array, classes: int, precision: float, *, full: bool) -> NativeModel:
    """Return the pieces of the log-likelihood for x (n, F) and classes y (n,); with `full` also of all data."""
    zero = np.zeros(1)
    args = (np.ascontiguousarray(x), np.asarray(y, np.int64), classes, zero, precision)
    model = NativeModel(
        args,
        log_prior=log_prior,
        difference=piece_once(difference_of, _differences),
        moments=_moments,
        total=_total,
        gradient=_gradient,
        prior_gradient=prior_gradient,
        terms=_differences,
        full_pass_stats=piece_once(full_pass_stats_of, _differences),
    )
    tiles = tiles_of(x, zero.dtype) if full else None
    if tiles is None:
        return model
    return model._replace(
        args=(*args, tiles, zero, len(x)), total=_total_of_tiles, total_and_gradient=_total_and_gradient
    )


def native_bounds(
    x: Array, y: Array, classes: int, precision: float, order: int, surrogate: Any, expansion: Array
) -> NativeBounds:
    """Return the pieces of terms with bounds.

    Args:
        x: features (n, F).
        y: classes (n,).
        classes: K.
        precision: of the prior of each weight.
        order: of the surrogate; 0 for none.
        surrogate: its `Sums`, or None.
        expansion: logits and probabilities at the reference (n, 2, K); of any length without a surrogate.
    """
    anchor, inverse, gradient, hessian = reference_arrays(classes * x.shape[1], surrogate)
    reference = (order, anchor, inverse, gradient, hessian, expansion)
    args = (np.ascontiguousarray(x), np.asarray(y, np.int64), classes, np.zeros(1), precision, *reference)
    remainders = (bound_slope, _remainder) if order else ()
    return NativeBounds(args, log_prior, bound_width, _terms, _total, _size, taylor_difference, *remainders)


def native_lower_bound(
    x: Array, y: Array, classes: int, precision: float, sums: Any, expansion: Array
) -> NativeLowerBound:
    """Return the pieces of the lower bounds, which touch at the logits of the expansion (n, 2, K)."""
    anchor, gradient, hessian = sums.reference.theta.numpy(), sums.gradient.numpy(), sums.hessian.numpy()
    args = (
        np.ascontiguousarray(x),
        np.asarray(y, np.int64),
        classes,
        expansion,
        precision,
        anchor,
        gradient,
        hessian,
    )
    return NativeLowerBound(args, log_prior, _gap, total_bound)


@piece
def _fill_logits(x: Any, i: Any, theta: Any, logits: Any) -> None:
    features = x.shape[1]
    for k in range(len(logits)):
        total = 0.0
        for d in range(features):
            total += np.float64(x[i, d]) * theta[k * features + d]
        logits[k] = total


@piece
def _log_sum_exp(logits: Any) -> Any:
    largest, total = logits[0], 0.0
    for k in range(len(logits)):
        largest = max(largest, logits[k])
    for k in range(len(logits)):
        total += exp_negative_64(logits[k] - largest)
    return largest + math.log(total)


@piece
def _log_lik(x: Any, y: Any, i: Any, theta: Any, logits: Any) -> Any:
    _fill_logits(x, i, theta, logits)
    return logits[y[i]] - _log_sum_exp(logits)


@piece
def _fill_logits_of_rows(args: Any, rows: Any, size: Any, theta: Any, logits: Any) -> None:
    """Fill logits (K, tile) of `size` rows."""
    x, zero = args[0], args[3]
    features = x.shape[1]
    for k in range(len(logits)):
        products(x, rows, size, theta[k * features : (k + 1) * features], zero, logits[k])


@piece
def _fill_largest(logits: Any, size: Any, largest: Any) -> None:
    """Fill largest[j] with the largest of logits[:, j] for j < size."""
    for j in range(size):
        largest[j] = logits[0, j]
    for k in range(1, len(logits)):
        for j in range(size):
            largest[j] = max(largest[j], logits[k, j])


@piece
def _exponentiate(logits: Any, size: Any, largest: Any, totals: Any) -> None:
    """Replace logits by exp(logits - largest), and fill totals[j] with their sum over the classes, for j < size."""
    for j in range(size):
        totals[j] = 0.0
    for k in range(len(logits)):
        for j in range(size):
            logits[k, j] = exp_negative_64(logits[k, j] - largest[j])
            totals[j] += logits[k, j]


@piece
def _log_liks(args: Any, rows: Any, size: Any, theta: Any, logits: Any, work: Any, out: Any) -> None:
    """Fill out[j] with the log-likelihood of rows[j] for j < size; logits (K, tile) and work (2, tile) are changed."""
    y, largest, totals = args[1], work[0], work[1]
    _fill_logits_of_rows(args, rows, size, theta, logits)
    _fill_largest(logits, size, largest)
    for j in range(size):
        out[j] = logits[y[rows[j]], j] - largest[j]
    _exponentiate(logits, size, largest, totals)
    for j in range(size):
        total = totals[j]
        out[j] -= log_64(total) if total == total else total


@piece
def _differences(args: Any, index: Any, m: Any, origin: Any, candidate: Any, out: Any) -> None:
    tile = min(_TILE, m)
    logits, work, before = np.empty((args[2], tile)), np.empty((2, tile)), np.empty(tile)
    for start in range(0, m, _TILE):
        size = min(_TILE, m - start)
        rows, after = index[start:], out[start : start + size]
        _log_liks(args, rows, size, origin, logits, work, before)
        _log_liks(args, rows, size, candidate, logits, work, after)
        for j in range(size):
            after[j] -= before[j]


@piece
def _moments(args: Any, index: Any, m: Any, theta: Any) -> Any:
    tile = min(_TILE, m)
    logits, work, values = np.empty((args[2], tile)), np.empty((2, tile)), np.empty(tile)
    total, square = 0.0, 0.0
    for start in range(0, m, _TILE):
        size = min(_TILE, m - start)
        _log_liks(args, index[start:], size, theta, logits, work, values)
        for j in range(size):
            total += values[j]
            square += values[j] * values[j]
    return total, square


_total = piece_once(total_of, _moments)


@piece
def _gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
    x, y = args[0], args[1]
    features = x.shape[1]
    tile = min(_TILE, m)
    logits, largest, totals = np.empty((args[2], tile)), np.empty(tile), np.empty(tile)
    for d in range(len(out)):
        out[d] = 0.0
    for start in range(0, m, _TILE):
        size = min(_TILE, m - start)
        rows = index[start:]
        _fill_logits_of_rows(args, rows, size, theta, logits)
        _fill_largest(logits, size, largest)
        _exponentiate(logits, size, largest, totals)
        for k in range(len(logits)):
            factors = logits[k]
            for j in range(size):
                factors[j] = (1.0 if y[rows[j]] == k else 0.0) - factors[j] / totals[j]
            add_rows(x, rows, size, factors, out[k * features : (k + 1) * features])


@piece
def _fill_logits_of_tile(args: Any, k: Any, size: Any, theta: Any, logits: Any) -> None:
    """Fill logits (K, tile) of the data of tile k."""
    tiles, zero = args[5], args[6]
    features = tiles.shape[1]
    for label in range(len(logits)):
        weights = theta[label * features : (label + 1) * features]
        tile_products(tiles[k], weights, size, zero, logits[label])


@piece
def _sum_of_tile(y: Any, start: Any, size: Any, logits: Any, largest: Any, totals: Any) -> Any:
    """Return the sum of log-likelihoods; logits and totals become what `_exponentiate` makes of them."""
    total = 0.0
    _fill_largest(logits, size, largest)
    for j in range(size):
        total += logits[y[start + j], j] - largest[j]
    _exponentiate(logits, size, largest, totals)
    for j in range(size):
        total -= log_64(totals[j]) if totals[j] == totals[j] else totals[j]
    return total


@piece
def _total_of_tiles(args: Any, theta: Any) -> Any:
    y, n = args[1], args[7]
    logits, largest, totals = np.empty((args[2], TILE)), np.empty(TILE), np.empty(TILE)
    log_lik = 0.0
    for k in range(len(args[5])):
        start, size = k * TILE, min(TILE, n - k * TILE)
        _fill_logits_of_tile(args, k, size, theta, logits)
        log_lik += _sum_of_tile(y, start, size, logits, largest, totals)
    return log_lik


@piece
def _total_and_gradient(args: Any, theta: Any, out: Any) -> Any:
    y, tiles, zero, n = args[1], args[5], args[6], args[7]
    features = tiles.shape[1]
    logits, largest, totals = np.empty((args[2], TILE)), np.empty(TILE), np.empty(TILE)
    log_lik = 0.0
    for d in range(len(out)):
        out[d] = 0.0
    for k in range(len(tiles)):
        start, size = k * TILE, min(TILE, n - k * TILE)
        _fill_logits_of_tile(args, k, size, theta, logits)
        log_lik += _sum_of_tile(y, start, size, logits, largest, totals)
        for label in range(len(logits)):
            factors = logits[label]
            for j in range(size):
                factors[j] = (1.0 if y[start + j] == label else 0.0) - factors[j] / totals[j]
            add_tile(tiles[k], size, factors, zero, out[label * features : (label + 1) * features])
    return log_lik


@piece
def _expanded(expansion: Any, i: Any, label: Any, order: Any, logits: Any) -> Any:
    """Return the Taylor polynomial at logits (K,), without its constant."""
    mean, spread = 0.0, 0.0
    for k in range(len(logits)):
        mean += expansion[i, 1, k] * (logits[k] - expansion[i, 0, k])
    first = logits[label] - expansion[i, 0, label] - mean
    if order == 1:
        return first
    for k in range(len(logits)):
        away = logits[k] - expansion[i, 0, k] - mean
        spread += expansion[i, 1, k] * away * away
    return first - 0.5 * spread


@piece
def _terms(args: Any, index: Any, m: Any, origin: Any, candidate: Any, out: Any) -> None:
    x, y, order, expansion, logits = args[0], args[1], args[5], args[10], np.empty(args[2])
    for j in range(m):
        i = index[j]
        term = -_log_lik(x, y, i, origin, logits)
        if order > 0:
            term += _expanded(expansion, i, y[i], order, logits)
        term += _log_lik(x, y, i, candidate, logits)
        if order > 0:
            term -= _expanded(expansion, i, y[i], order, logits)
        out[j] = term


@routine
def _size(args: Any, i: Any, origin: Any, candidate: Any) -> Any:
    x, y, order, expansion, logits = args[0], args[1], args[5], args[10], np.empty(args[2])
    total = 0.0
    for theta in (origin, candidate):
        total += abs(_log_lik(x, y, i, theta, logits))
        if order > 0:
            total += abs(_expanded(expansion, i, y[i], order, logits))
    return total


@piece
def _remainder(args: Any, i: Any, theta: Any, remainder_grad: Any, grad: Any) -> None:
    x, y, order, expansion, logits = args[0], args[1], args[5], args[10], np.empty(args[2])
    features = x.shape[1]
    _fill_logits(x, i, theta, logits)
    log_sum, mean = _log_sum_exp(logits), 0.0
    for k in range(len(logits)):
        mean += expansion[i, 1, k] * (logits[k] - expansion[i, 0, k])
    for k in range(len(logits)):
        share = exp_negative_64(logits[k] - log_sum)
        rest = expansion[i, 1, k] - share
        if order == 2:
            rest += expansion[i, 1, k] * (logits[k] - expansion[i, 0, k] - mean)
        whole = (1.0 if k == y[i] else 0.0) - share
        for d in range(features):
            value = np.float64(x[i, d])
            remainder_grad[k * features + d] = rest * value
            grad[k * features + d] = whole * value


@piece
def _gap(args: Any, i: Any, theta: Any) -> Any:
    x, y, expansion, logits = args[0], args[1], args[3], np.empty(args[2])
    log_lik = _log_lik(x, y, i, theta, logits)
    first, square, total = _log_sum_exp(expansion[i, 0]), 0.0, 0.0
    for k in range(len(logits)):
        step = logits[k] - expansion[i, 0, k]
        first += step * expansion[i, 1, k]
        square += step * step
        total += step
    bound = logits[y[i]] - first - 0.25 * (square - total * total / len(logits))
    return log_lik - bound, GAP_ROUNDING * (1 + abs(log_lik) + abs(bound))
