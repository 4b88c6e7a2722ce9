"""Sums over all data of models with a linear predictor and few features, in compiled loops.

All data are read in order, so that they can be kept as vector lanes want them: neighbouring numbers are one feature of
neighbouring data. Row by row, a pass over data with few features takes two to five times as long.

The pieces read three places of ``args``: the sixth has the tiles, the seventh the `zero` of products, see
`mhrun.models.linear_native`, and the eighth the number of data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.array_types import Array
from mhrun.native import Piece, piece

TILE = 256  # data of a tile
_MOST_FEATURES = 64  # with more, tiles are no faster
_MOST_NUMBERS = 1 << 25  # of the features, which are copied


def tiles_of(x: Array, dtype: npt.DTypeLike) -> Array | None:
    """Return data x (n, D) as tiles (n / TILE, D, TILE) of floating-point numbers; None if it is large.

    Integers become `dtype`. The last tile ends with zeros, which no piece reads.
    """
    n, features = x.shape
    if features > _MOST_FEATURES or x.size > _MOST_NUMBERS:
        return None
    tiles = np.zeros((-(-n // TILE), features, TILE), x.dtype if x.dtype.kind == "f" else dtype)
    for k in range(len(tiles)):
        rows = x[k * TILE : (k + 1) * TILE]
        tiles[k, :, : len(rows)] = rows.T
    return tiles


# Four features at a time, so that each sum is loaded and stored once for four.


@piece
def tile_products(tile: Any, w: Any, size: Any, zero: Any, out: Any) -> None:
    """out[j] = sum_d w[d] tile[d, j] for j < size."""
    fours = len(w) // 4 * 4
    for j in range(size):
        out[j] = zero[0]
    for d in range(0, fours, 4):
        a, b, e, f = w[d], w[d + 1], w[d + 2], w[d + 3]
        p, q, r, s = tile[d], tile[d + 1], tile[d + 2], tile[d + 3]
        for j in range(size):
            out[j] += (a * p[j] + b * q[j]) + (e * r[j] + f * s[j])
    for d in range(fours, len(w)):
        a, p = w[d], tile[d]
        for j in range(size):
            out[j] += a * p[j]


@piece
def add_tile(tile: Any, size: Any, factors: Any, zero: Any, out: Any) -> None:
    """Add sum_j factors[j] tile[d, j] over j < size to out[d], which each tile adds to in the precision of `out`."""
    fours = len(out) // 4 * 4
    for d in range(0, fours, 4):
        p, q, r, s = tile[d], tile[d + 1], tile[d + 2], tile[d + 3]
        a, b, e, f = zero[0], zero[0], zero[0], zero[0]
        for j in range(size):
            factor = factors[j]
            a += factor * p[j]
            b += factor * q[j]
            e += factor * r[j]
            f += factor * s[j]
        out[d] += a
        out[d + 1] += b
        out[d + 2] += e
        out[d + 3] += f
    for d in range(fours, len(out)):
        p, a = tile[d], zero[0]
        for j in range(size):
            a += factors[j] * p[j]
        out[d] += a


def total_of_tiles(weights_of: Piece, sum_of: Piece) -> Piece:
    """Return the piece `total` of a `NativeModel`.

    Args:
        weights_of: ``(args, theta)`` -> w (D,), so that the predictor is w.x.
        sum_of: ``(args, start, size, eta)`` -> the sum of the log-likelihoods of data start, ..., start + size - 1,
            which have the predictors eta.
    """

    def total(args: Any, theta: Any) -> Any:
        tiles, zero, n = args[5], args[6], args[7]
        weights, eta = weights_of(args, theta), np.empty(TILE, zero.dtype)
        log_lik = 0.0
        for k in range(len(tiles)):
            size = min(TILE, n - k * TILE)
            tile_products(tiles[k], weights, size, zero, eta)
            log_lik += sum_of(args, k * TILE, size, eta)
        return log_lik

    return total


def total_and_gradient_of_tiles(weights_of: Piece, score: Piece) -> Piece:
    """Return the piece `total_and_gradient` of a `NativeModel`.

    Args:
        weights_of: see `total_of_tiles`.
        score: as its `sum_of`; it replaces each eta by the derivative of the log-likelihood.
    """

    def total_and_gradient(args: Any, theta: Any, out: Any) -> Any:
        tiles, zero, n = args[5], args[6], args[7]
        weights, eta = weights_of(args, theta), np.empty(TILE, zero.dtype)
        log_lik = 0.0
        for d in range(len(out)):
            out[d] = 0.0
        for k in range(len(tiles)):
            size = min(TILE, n - k * TILE)
            tile_products(tiles[k], weights, size, zero, eta)
            log_lik += score(args, k * TILE, size, eta)
            add_tile(tiles[k], size, eta, zero, out)
        return log_lik

    return total_and_gradient
