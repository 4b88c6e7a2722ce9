"""The pieces of logistic regression for compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.models.linear_native import (
    add_rows,
    difference_of,
    full_pass_stats_of,
    log_prior,
    prior_gradient,
    product_pairs,
    products,
    total_of,
)
from mhrun.models.tiles_native import tiles_of, total_and_gradient_of_tiles, total_of_tiles
from mhrun.native import NativeModel, piece
from mhrun.native.compiler import piece_once
from mhrun.native.maths import exp_negative_64, log1p_unit_64

_TILE = 256  # rows at a time


def pieces(
    x: npt.NDArray[Any], y: npt.NDArray[Any], scale: float, precision: float, *, full: bool
) -> NativeModel:
    """Return the pieces for x (n, D) and y (n,), +1 or -1.

    Args:
        x: the rows; products with them have their precision, float32 for integers.
        y: the labels.
        scale: factor applied to x.
        precision: prior precision of each weight; 0 for a flat prior.
        full: whether sums over all data are needed.
    """
    zero = np.zeros(1, x.dtype if x.dtype.kind == "f" else np.float32)
    args = (np.ascontiguousarray(x), y, zero, scale, precision)
    model = NativeModel(
        args,
        log_prior=log_prior,
        difference=piece_once(difference_of, _terms),
        moments=_moments,
        total=log_lik_of_all,
        gradient=_gradient,
        prior_gradient=prior_gradient,
        terms=_terms,
        full_pass_stats=piece_once(full_pass_stats_of, _terms),
    )
    tiles = tiles_of(x, zero.dtype) if full else None
    if tiles is None:
        return model
    return model._replace(
        args=(*args, tiles, zero, len(x)),
        total=piece_once(total_of_tiles, _weights, _sum),
        total_and_gradient=piece_once(total_and_gradient_of_tiles, _weights, _score),
    )


@piece
def log_sigmoid(z: Any) -> Any:
    """Return log(1 / (1 + exp(-z)))."""
    return min(z, 0.0) - log1p_unit_64(exp_negative_64(-abs(z)))


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
def _fill_signs(y: Any, rows: Any, size: Any, signs: Any) -> None:
    """Fill signs[j] with y[rows[j]] for j < size: arithmetic on what is gathered is not in vector lanes."""
    for j in range(size):
        signs[j] = y[rows[j]]


@piece
def _terms(args: Any, index: Any, m: Any, origin: Any, candidate: Any, out: Any) -> None:
    x, y, zero, scale = args[0], args[1], args[2], args[3]
    origin_weights, candidate_weights = rounded(origin, scale, zero), rounded(candidate, scale, zero)
    tile = min(_TILE, m)
    before, signs = np.empty(tile), np.empty(tile)
    for start in range(0, m, _TILE):
        size = min(_TILE, m - start)
        part, rows = out[start : start + size], index[start:]
        product_pairs(x, rows, size, origin_weights, candidate_weights, zero, before, part)
        _fill_signs(y, rows, size, signs)
        for j in range(size):
            part[j] = log_sigmoid(signs[j] * part[j]) - log_sigmoid(signs[j] * before[j])


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


log_lik_of_all = piece_once(total_of, _moments)


@piece
def _gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
    x, y, zero, scale = args[0], args[1], args[2], args[3]
    weights = rounded(theta, scale, zero)
    tile = min(_TILE, m)
    values, factors, part = np.empty(tile), np.empty(tile, zero.dtype), np.empty_like(weights)
    signs = np.empty(tile)
    for d in range(len(out)):
        out[d] = 0.0
    for start in range(0, m, _TILE):
        size = min(_TILE, m - start)
        rows = index[start:]
        products(x, rows, size, weights, zero, values)
        _fill_signs(y, rows, size, signs)
        for j in range(size):
            z = signs[j] * values[j]
            e = exp_negative_64(-abs(z))
            factors[j] = signs[j] * scale * (e if z > 0 else 1.0) / (1.0 + e)  # of log-sigmoid: sigmoid(-z)
        for d in range(len(out)):
            part[d] = zero[0]
        add_rows(x, rows, size, factors, part)
        for d in range(len(out)):  # in float64; those of a tile are in the precision of the data
            out[d] += part[d]


@piece
def _weights(args: Any, theta: Any) -> Any:
    return rounded(theta, args[3], args[2])


@piece
def _sum(args: Any, start: Any, size: Any, eta: Any) -> Any:
    y, total = args[1], 0.0
    for j in range(size):
        total += log_sigmoid(np.float64(y[start + j]) * eta[j])
    return total


@piece
def _score(args: Any, start: Any, size: Any, eta: Any) -> Any:
    y, scale, total = args[1], args[3], 0.0
    for j in range(size):
        sign = np.float64(y[start + j])
        z = sign * eta[j]
        e = exp_negative_64(-abs(z))
        total += min(z, 0.0) - log1p_unit_64(e)
        eta[j] = sign * scale * (e if z > 0 else 1.0) / (1.0 + e)
    return total
