"""Sums of an analytic function over scalar data, from a few hundred weighted nodes.

The data are divided into bins. In each bin the function is replaced by its interpolant at `order`
Chebyshev nodes, and the sum of that interpolant over the data is a weighted sum over the nodes. For a
function that is analytic within distance R of the real line, one datum's error falls like rho^-order
with rho = R/h + sqrt((R/h)^2 + 1) and h the half width of a bin: at R = 2h, twenty nodes leave 3e-13.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mhrun.array_types import Float64Array


def bins_of(x: npt.NDArray[np.floating], half_width: float, order: int) -> tuple[Float64Array, Float64Array]:
    """Return the centres of the bins that hold the data (bins,), and the offsets of a bin's nodes from it (order,)."""
    low, high = float(x.min()), float(x.max())
    bins = int((high - low) / (2 * half_width)) + 1
    angles = np.pi * (np.arange(order) + 0.5) / order
    centres: Float64Array = np.asarray(low + half_width * (2 * np.arange(bins) + 1), np.float64)
    return centres, half_width * np.cos(angles)


def compress(
    x: npt.NDArray[np.floating], half_width: float, order: int, *, every_bin: bool = False
) -> tuple[Float64Array, Float64Array]:
    """Return nodes and weights, each (bins * order,), with sum_i f(x_i) = sum_j weights_j f(nodes_j).

    Args:
        x: the data (n,); read in pieces, so it may be memory-mapped.
        half_width: half the width of a bin.
        order: nodes per bin.
        every_bin: include bins without data, whose weights are 0.
    """
    low = float(x.min())
    centres, offsets = bins_of(x, half_width, order)
    bins = len(centres)
    # The sums over a bin's data of the Chebyshev polynomials T_0 .. T_{order-1}.
    moments = np.zeros((order, bins))
    for start in range(0, len(x), 1 << 20):
        part = x[start : start + (1 << 20)].astype(np.float64)
        where = np.minimum(((part - low) / (2 * half_width)).astype(np.int64), bins - 1)
        u = (part - centres[where]) / half_width
        previous, current = np.ones_like(u), u
        for k in range(order):
            moments[k] += np.bincount(where, previous, minlength=bins)
            previous, current = current, 2 * u * current - previous
    angles = np.pi * (np.arange(order) + 0.5) / order
    polynomials = np.cos(np.outer(np.arange(order), angles))  # T_k at node j
    polynomials[0] *= 0.5
    weights = 2 / order * moments.T @ polynomials  # (bins, order)
    nodes = centres[:, None] + offsets
    occupied = (moments[0] > 0) | every_bin
    return nodes[occupied].ravel(), weights[occupied].ravel()
