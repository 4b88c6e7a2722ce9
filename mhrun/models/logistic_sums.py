"""Log-likelihoods of all data at the points of many chains, in one compiled pass: for logistic regression."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from mhrun.models.logistic_native import log_sigmoid, product_pairs, products, rounded
from mhrun.native import piece
from mhrun.native.compiler import Piece, available, compiled, over_chains

_TILE = 256  # rows at a time: their converted numbers and the products stay in the cache
_GROUP = 4  # chains at a time
_PAYS = 1 << 20  # numbers of x from which the pass pays for its compilation


def compiled_sums_pay(theta: Tensor, x: Tensor) -> bool:
    """Return whether `sums` takes these points (C, D) and rows (n, D), and is faster than torch.

    They are on a CPU, without a gradient to be recorded, and x is large.
    """
    plain = theta.device.type == x.device.type == "cpu" and not theta.requires_grad
    return plain and x.numel() >= _PAYS and available() and not isinstance(theta, FakeTensor)


def sums(theta: Tensor, x: Tensor, y: Tensor, scale: float) -> Tensor:
    """Return sum_i log sigmoid(y_i scale x_i . theta), (C,) float64.

    Products have the precision of x, float32 for integers. Each row is read once for four chains, and bytes are
    converted as they are read: a product of matrices would convert all of x first, or read four times as much.
    """
    rows = x.numpy()
    zero = np.zeros(1, rows.dtype if rows.dtype.kind == "f" else np.float32)
    points = np.ascontiguousarray(theta.double().numpy())
    out = np.zeros(len(points))
    groups = -(-len(points) // _GROUP)  # which threads share: rounding does not depend on their number
    values = (rows, y.numpy(), zero, scale, points, out)
    over_chains(_loop(), groups, torch.get_num_threads(), *values, own=lambda part: None)
    return torch.from_numpy(out)


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


@lru_cache(maxsize=1)
def _loop() -> Piece:
    def loop(
        first: Any, last: Any, own: Any, x: Any, y: Any, zero: Any, scale: Any, theta: Any, out: Any
    ) -> None:
        n, first = len(x), first * _GROUP
        chains = min(last * _GROUP, len(theta)) - first
        weights = np.empty((chains, theta.shape[1]), zero.dtype)
        for c in range(chains):
            weights[c] = rounded(theta[first + c], scale, zero)
        values, index = np.empty((chains, _TILE)), np.empty(_TILE, np.int64)
        fours = chains // _GROUP * _GROUP
        twos = fours + (chains - fours) // 2 * 2
        for start in range(0, n, _TILE):
            size = min(_TILE, n - start)
            for j in range(size):
                index[j] = start + j
            for c in range(0, fours, _GROUP):
                _product_fours(x, start, size, weights[c : c + _GROUP], zero, values[c : c + _GROUP])
            for c in range(fours, twos, 2):
                product_pairs(x, index, size, weights[c], weights[c + 1], zero, values[c], values[c + 1])
            for c in range(twos, chains):
                products(x, index, size, weights[c], zero, values[c])
            for c in range(chains):
                total = 0.0
                for j in range(size):
                    total += log_sigmoid(np.float64(y[start + j]) * values[c, j])
                out[first + c] += total

    return compiled(loop)
