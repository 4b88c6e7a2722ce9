"""Log-likelihoods of all data at the points of many chains, in one compiled pass: for logistic regression."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.models.linear_native import product_pairs, products
from mhrun.models.logistic_native import log_sigmoid, rounded
from mhrun.native import piece
from mhrun.native.compiler import Piece, available, compiled_once, over_chains
from mhrun.native.processor import vector_registers
from mhrun.torch_private import is_fake

_TILE = 256  # rows at a time: the products of one group of chains with them stay in the cache
_PAYS = 1 << 20  # numbers of x from which the pass pays for its compilation


def compiled_sums_pay(theta: Tensor, x: Tensor) -> bool:
    """Return whether `sums` takes these points (C, D) and rows (n, D), and is faster than torch.

    They are on a CPU, without a gradient to be recorded, and x is large.
    """
    plain = theta.device.type == x.device.type == "cpu" and not theta.requires_grad
    return plain and x.numel() >= _PAYS and available() and not is_fake(theta)


def sums(theta: Tensor, x: Tensor, y: Tensor, scale: float) -> Tensor:
    """Return sum_i log sigmoid(y_i scale x_i . theta), (C,) float64.

    Products have the precision of x, float32 for integers. Each row is read once for four or five chains, and bytes are
    converted as they are read: a product of matrices would convert all of x first, or read four times as much.
    """
    rows = x.numpy()
    zero = np.zeros(1, rows.dtype if rows.dtype.kind == "f" else np.float32)
    points = np.ascontiguousarray(theta.double().numpy())
    fives = _groups_of_five(len(points)) if vector_registers() >= 32 else 0
    # Each tile has separate sums, so that rounding does not depend on the number of threads, which share the tiles.
    out = np.zeros((-(-len(rows) // _TILE), len(points)))
    values = (rows, y.numpy(), zero, scale, points, fives, out)
    over_chains(compiled_once(_loop), len(out), torch.get_num_threads(), *values, own=lambda part: None)
    return torch.from_numpy(out.sum(0))


def _groups_of_five(chains: int) -> int:
    """Return the largest number of groups of five that leaves whole groups of four, 0 if there is none.

    A group of five takes 15 sums, with their factors too many for 16 registers; a chain in it took 0.92 of the time
    of one among four, and 0.65 of one among two (AVX-512).
    """
    rest = chains % 4
    return rest + (chains - 5 * rest) // 20 * 4 if 5 * rest <= chains else 0


@piece
def _product_fives(x: Any, start: Any, m: Any, w: Any, zero: Any, out: Any) -> None:
    """out[c, j] = w[c] . x[start + j] for five chains c and j < m, three rows at a time.

    Written out, as `_product_fours` is, so that the compiler keeps the sums in registers.
    """
    w0, w1, w2, w3, w4 = w[0], w[1], w[2], w[3], w[4]
    whole = m // 3 * 3
    for j in range(0, whole, 3):
        p, q, r = x[start + j], x[start + j + 1], x[start + j + 2]
        p0, p1, p2, p3, p4 = zero[0], zero[0], zero[0], zero[0], zero[0]
        q0, q1, q2, q3, q4 = zero[0], zero[0], zero[0], zero[0], zero[0]
        r0, r1, r2, r3, r4 = zero[0], zero[0], zero[0], zero[0], zero[0]
        for k in range(len(w0)):
            p0 += w0[k] * p[k]
            q0 += w0[k] * q[k]
            r0 += w0[k] * r[k]
            p1 += w1[k] * p[k]
            q1 += w1[k] * q[k]
            r1 += w1[k] * r[k]
            p2 += w2[k] * p[k]
            q2 += w2[k] * q[k]
            r2 += w2[k] * r[k]
            p3 += w3[k] * p[k]
            q3 += w3[k] * q[k]
            r3 += w3[k] * r[k]
            p4 += w4[k] * p[k]
            q4 += w4[k] * q[k]
            r4 += w4[k] * r[k]
        out[0, j], out[1, j], out[2, j], out[3, j], out[4, j] = p0, p1, p2, p3, p4
        out[0, j + 1], out[1, j + 1], out[2, j + 1], out[3, j + 1], out[4, j + 1] = q0, q1, q2, q3, q4
        out[0, j + 2], out[1, j + 2], out[2, j + 2], out[3, j + 2], out[4, j + 2] = r0, r1, r2, r3, r4
    for j in range(whole, m):
        p = x[start + j]
        a, b, c, d, e = zero[0], zero[0], zero[0], zero[0], zero[0]
        for k in range(len(w0)):
            a += w0[k] * p[k]
            b += w1[k] * p[k]
            c += w2[k] * p[k]
            d += w3[k] * p[k]
            e += w4[k] * p[k]
        out[0, j], out[1, j], out[2, j], out[3, j], out[4, j] = a, b, c, d, e


@piece
def _product_fours(x: Any, start: Any, m: Any, w: Any, zero: Any, out: Any) -> None:
    """out[c, j] = w[c] . x[start + j] for four chains c and j < m.

    Three rows at a time, so that each weight is loaded once for three rows and each row once for four chains: twelve
    sums and their factors fit into sixteen registers.
    """
    w0, w1, w2, w3 = w[0], w[1], w[2], w[3]
    whole = m // 3 * 3
    for j in range(0, whole, 3):
        p, q, r = x[start + j], x[start + j + 1], x[start + j + 2]
        p0, p1, p2, p3 = zero[0], zero[0], zero[0], zero[0]
        q0, q1, q2, q3 = zero[0], zero[0], zero[0], zero[0]
        r0, r1, r2, r3 = zero[0], zero[0], zero[0], zero[0]
        for k in range(len(w0)):
            p0 += w0[k] * p[k]
            q0 += w0[k] * q[k]
            r0 += w0[k] * r[k]
            p1 += w1[k] * p[k]
            q1 += w1[k] * q[k]
            r1 += w1[k] * r[k]
            p2 += w2[k] * p[k]
            q2 += w2[k] * q[k]
            r2 += w2[k] * r[k]
            p3 += w3[k] * p[k]
            q3 += w3[k] * q[k]
            r3 += w3[k] * r[k]
        out[0, j], out[1, j], out[2, j], out[3, j] = p0, p1, p2, p3
        out[0, j + 1], out[1, j + 1], out[2, j + 1], out[3, j + 1] = q0, q1, q2, q3
        out[0, j + 2], out[1, j + 2], out[2, j + 2], out[3, j + 2] = r0, r1, r2, r3
    for j in range(whole, m):
        p = x[start + j]
        a, b, c, d = zero[0], zero[0], zero[0], zero[0]
        for k in range(len(w0)):
            a += w0[k] * p[k]
            b += w1[k] * p[k]
            c += w2[k] * p[k]
            d += w3[k] * p[k]
        out[0, j], out[1, j], out[2, j], out[3, j] = a, b, c, d


def _loop() -> Piece:
    def loop(
        first: Any,
        last: Any,
        own: Any,
        x: Any,
        y: Any,
        zero: Any,
        scale: Any,
        theta: Any,
        fives: Any,
        out: Any,
    ) -> None:
        chains = len(theta)
        weights = np.empty((chains, theta.shape[1]), zero.dtype)
        for c in range(chains):
            weights[c] = rounded(theta[c], scale, zero)
        values, index = np.empty((chains, _TILE)), np.empty(_TILE, np.int64)
        five = 5 * fives
        four = five + (chains - five) // 4 * 4
        two = four + (chains - four) // 2 * 2
        for tile in range(first, last):
            start = tile * _TILE
            size = min(_TILE, len(x) - start)
            for j in range(size):
                index[j] = start + j
            for c in range(0, five, 5):
                _product_fives(x, start, size, weights[c : c + 5], zero, values[c : c + 5])
            for c in range(five, four, 4):
                _product_fours(x, start, size, weights[c : c + 4], zero, values[c : c + 4])
            for c in range(four, two, 2):
                product_pairs(x, index, size, weights[c], weights[c + 1], zero, values[c], values[c + 1])
            for c in range(two, chains):
                products(x, index, size, weights[c], zero, values[c])
            for c in range(chains):
                total = 0.0
                for j in range(size):
                    total += log_sigmoid(np.float64(y[start + j]) * values[c, j])
                out[tile, c] = total

    return loop
