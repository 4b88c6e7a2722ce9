"""Updates of the parameters of several chains in one pass, where torch needs three or four."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.native.compiler import Piece, compiled
from mhrun.native.tensors import fit_for_loops

# Number of parameters from which on compiling pays. At least `mhrun.random.MANY`: fewer normals are a view of numbers
# drawn ahead, which `moved` must not overwrite.
LONG = 4096


def _compiled(*tensors: Tensor) -> bool:
    """Return whether compiled loops support the tensors (C, D): long rows of one type, see `fit_for_loops`."""
    return tensors[0].shape[-1] >= LONG and len({t.dtype for t in tensors}) == 1 and fit_for_loops(*tensors)


@lru_cache(maxsize=1)
def _moved() -> Piece:
    def loop(theta: Any, grad: Any, z: Any, drift: Any, spread: Any) -> None:
        for c in range(theta.shape[0]):
            a, b = drift[c], spread[c]
            for d in range(theta.shape[1]):
                z[c, d] = theta[c, d] + a * grad[c, d] + b * z[c, d]

    return compiled(loop)


@lru_cache(maxsize=1)
def _squares() -> Piece:
    def loop(to: Any, theta: Any, grad: Any, drift: Any, out: Any) -> None:
        for c in range(theta.shape[0]):
            a, total = drift[c], 0.0
            for d in range(theta.shape[1]):
                gap = np.float64(to[c, d]) - np.float64(theta[c, d]) - np.float64(a * grad[c, d])
                total += gap * gap
            out[c] = total

    return compiled(loop)


def moved(theta: Tensor, grad: Tensor, z: Tensor, drift: Tensor, spread: Tensor) -> Tensor:
    """Return theta + drift grad + spread z, (C, D), drift and spread (C,); z is overwritten if D >= `LONG`."""
    if not _compiled(theta, grad, z):
        return (spread[:, None] * z).add_(theta).add_(drift[:, None] * grad)
    factors = (drift.to(theta.dtype), spread.to(theta.dtype))
    _moved()(*(v.numpy() for v in (theta, grad, z, *factors)))
    return z


def gap_squares(to: Tensor, theta: Tensor, grad: Tensor, drift: Tensor) -> Tensor:
    """Return the sum over d of (to - theta - drift grad)^2, (C,) float64; drift (C,).

    Densities of many parameters have large exponents, so sums are float64 whatever the type of the chains.
    """
    if not _compiled(to, theta, grad):
        gap = (to - theta).sub_(drift[:, None] * grad)
        return torch.linalg.vector_norm(gap, dim=-1, dtype=torch.float64).square()
    out = torch.empty(len(theta), dtype=torch.float64)
    _squares()(to.numpy(), theta.numpy(), grad.numpy(), drift.to(theta.dtype).numpy(), out.numpy())
    return out


@lru_cache(maxsize=1)
def _square_sum() -> Piece:
    def loop(theta: Any, out: Any) -> None:
        for c in range(theta.shape[0]):
            total = 0.0
            for d in range(theta.shape[1]):
                total += np.float64(theta[c, d]) ** 2
            out[c] = total

    return compiled(loop)


def square_sum(theta: Tensor) -> Tensor:
    """Return the sum over d of theta^2, (C,) float64; theta (C, D).

    Ratios have differences of it, in which rounding errors of float32 would show: it is as large as D.
    """
    if not _compiled(theta):
        return theta.square().sum(-1, dtype=torch.float64)
    out = torch.empty(len(theta), dtype=torch.float64)
    _square_sum()(theta.numpy(), out.numpy())
    return out


@lru_cache(maxsize=1)
def _log_ratio_sum() -> Piece:
    def loop(theta: Any, to: Any, grad: Any, grad_to: Any, drift: Any, out: Any) -> None:
        for c in range(theta.shape[0]):
            half, total = 0.5 * np.float64(drift[c]), 0.0
            for d in range(theta.shape[1]):
                here, there = np.float64(grad[c, d]), np.float64(grad_to[c, d])
                step = np.float64(to[c, d]) - np.float64(theta[c, d])
                total += (here + there) * (step + half * (there - here))
            out[c] = total

    return compiled(loop)


def log_ratio_sum(theta: Tensor, to: Tensor, grad: Tensor, grad_to: Tensor, drift: Tensor) -> Tensor:
    """Return the sum over d of (grad + grad_to) (to - theta + drift (grad_to - grad) / 2), (C,) float64; drift (C,)."""
    if not _compiled(theta, to, grad, grad_to):
        step = (to - theta).add_((grad_to - grad).mul_(0.5 * drift[:, None]))
        return step.mul_(grad + grad_to).sum(-1, dtype=torch.float64)
    out = torch.empty(len(theta), dtype=torch.float64)
    values = (theta, to, grad, grad_to, drift)
    _log_ratio_sum()(*(v.numpy() for v in values), out.numpy())
    return out


@lru_cache(maxsize=1)
def _combined() -> Piece:
    def loop(grad: Any, theta: Any, n: Any, by: Any) -> None:
        for c in range(theta.shape[0]):
            a, b = grad.dtype.type(n), by[c]
            for d in range(theta.shape[1]):
                grad[c, d] = a * grad[c, d] + b * theta[c, d]

    return compiled(loop)


def combined(grad: Tensor, theta: Tensor, n: int, by: Tensor) -> Tensor:
    """Return n grad + by theta, (C, D), in place of grad; by (C,)."""
    if not _compiled(grad, theta):
        return grad.mul_(n).addcmul_(theta, by[:, None].to(grad.dtype))
    _combined()(grad.numpy(), theta.numpy(), n, by.to(grad.dtype).numpy())
    return grad
