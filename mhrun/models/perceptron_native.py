"""Log-likelihoods and gradients of fully connected networks in one compiled loop over the chains.

A chain is evaluated from its inputs to its gradient before the next, so that its numbers stay in the cache, and between
two matrix products nothing but a loop is called. The products are those of SciPy's BLAS.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

from mhrun.errors import UserError
from mhrun.models.classes_native import NATIVE
from mhrun.native import Piece, compiled, over_chains
from mhrun.native.tensors import fit_for_loops
from mhrun.native.vectors import LONG

f32, f64 = np.float32, np.float64


def is_compiled(theta: Tensor, x: Tensor) -> bool:
    """Return whether the compiled loop is for points (C, D) and inputs (C or 1, m, k), see `fit_for_loops`.

    It is for float32 and networks of at least `LONG` parameters. Its threads share the chains, so that it has none to
    spare for a single one: where there are more threads than chains, torch lets them share each product.
    """
    enough = len(theta) >= torch.get_num_threads()
    return enough and theta.shape[1] >= LONG and theta.dtype == torch.float32 and fit_for_loops(theta, x)


def log_lik(theta: Tensor, x: Tensor, y: Tensor, units: Sequence[int], likelihood: str) -> Tensor:
    """Return log-likelihoods (C, m), float32; the arguments are those of `log_lik_and_grad`."""
    return _evaluated(theta, x, y, units, likelihood, torch.empty(0, theta.shape[1]))


def log_lik_and_grad(
    theta: Tensor, x: Tensor, y: Tensor, units: Sequence[int], likelihood: str
) -> tuple[Tensor, Tensor]:
    """Return log-likelihoods (C, m) and the gradient (C, D) of their mean, float32.

    Args:
        theta: points (C, D), for which `is_compiled` holds.
        x: inputs (C or 1, m, k); bytes are pixels k/255.
        y: classes (C or 1, m).
        units: of each layer, from the inputs to the outputs.
        likelihood: a name in `mhrun.models.classes.LIKELIHOODS`.

    Raises:
        UserError: a class that is negative, or K or more.
    """
    grad = torch.empty_like(theta)
    return _evaluated(theta, x, y, units, likelihood, grad), grad


def _evaluated(
    theta: Tensor, x: Tensor, y: Tensor, units: Sequence[int], likelihood: str, grad: Tensor
) -> Tensor:
    chains, m = len(theta), x.shape[1]
    y = y.long().expand(len(y), m).contiguous()
    log_lik, known = torch.empty(chains, m), np.empty(chains, np.bool_)
    size = m * (sum(units) + 2 * max(units[1:]))
    scale = f32(1 / 255) if x.dtype == torch.uint8 else f32(1)
    given = (theta.numpy(), x.numpy(), y.numpy(), scale, np.array(units))
    found = (log_lik.numpy(), grad.numpy(), known)
    loop, threads = _loop(NATIVE[likelihood]), torch.get_num_threads()
    with _one_thread_each():  # the threads share the chains
        over_chains(loop, chains, threads, *given, *found, own=lambda part: np.empty(size, np.float32))
    if not known.all():
        wrong, classes = y[(y < 0) | (y >= units[-1])][0], units[-1]
        raise UserError(f"y holds the class {wrong}; with {classes} outputs, classes are 0 to {classes - 1}.")
    return log_lik


def _one_thread_each() -> AbstractContextManager[object]:
    """Let matrix products have one thread each, as they have on the command line, where this costs nothing."""
    blas = _blas()
    if all(library.num_threads == 1 for library in blas.lib_controllers):
        return nullcontext()
    context: AbstractContextManager[object] = blas.limit(limits=1)
    return context


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    import scipy.linalg.cython_blas  # noqa: F401  # so that its library is loaded

    return ThreadpoolController().select(user_api="blas")


@lru_cache(maxsize=2)
def _loop(likelihood: Piece) -> Piece:
    def loop(
        first: Any,
        last: Any,
        own: Any,
        theta: Any,
        x: Any,
        y: Any,
        scale: Any,
        units: Any,
        log_lik: Any,
        grad: Any,
        known: Any,
    ) -> None:
        m, depth = x.shape[1], len(units) - 1
        outer = own[m * units.sum() :]  # room for derivatives by the outputs of two neighbouring layers
        half = len(outer) // 2
        sums = np.empty(units.max())
        for c in range(first, last):
            inputs = own[: m * units[0]].reshape(m, units[0])
            rows = x[min(c, len(x) - 1)]
            for j in range(m):
                for k in range(units[0]):
                    inputs[j, k] = f32(rows[j, k]) * scale

            point, at, place = theta[c], 0, 0
            for i in range(depth):
                inward, outward = units[i], units[i + 1]
                weights = point[at : at + outward * inward].reshape(outward, inward)
                at += outward * inward
                bias = point[at : at + outward]
                at += outward
                inputs = own[place : place + m * inward].reshape(m, inward)
                place += m * inward
                outputs = own[place : place + m * outward].reshape(m, outward)
                np.dot(inputs, weights.T, outputs)
                lowest = f32(-np.inf) if i == depth - 1 else f32(0)
                for j in range(m):
                    for k in range(outward):
                        value = outputs[j, k] + bias[k]
                        outputs[j, k] = lowest if value < lowest else value  # NaN stays

            classes = units[depth]
            logits = own[place : place + m * classes].reshape(m, classes)
            delta = outer[: m * classes].reshape(m, classes)
            known[c] = likelihood(logits, y[min(c, len(y) - 1)], log_lik[c], delta)
            if len(grad) == 0 or not known[c]:
                continue
            for j in range(m):
                for k in range(classes):
                    delta[j, k] /= f32(m)

            for back in range(depth):
                i = depth - 1 - back
                inward, outward = units[i], units[i + 1]
                at -= outward
                slope = grad[c, at : at + outward]
                sums[:outward] = 0
                for j in range(m):
                    for k in range(outward):
                        sums[k] += f64(delta[j, k])
                for k in range(outward):
                    slope[k] = f32(sums[k])
                at -= outward * inward
                place -= m * inward
                inputs = own[place : place + m * inward].reshape(m, inward)
                np.dot(delta.T, inputs, grad[c, at : at + outward * inward].reshape(outward, inward))
                if i > 0:
                    start = half - half * (back % 2)
                    weights = point[at : at + outward * inward].reshape(outward, inward)
                    behind = outer[start : start + m * inward].reshape(m, inward)
                    np.dot(delta, weights, behind)
                    for j in range(m):
                        for k in range(inward):
                            behind[j, k] = f32(0) if inputs[j, k] <= f32(0) else behind[j, k]
                    delta = behind

    return compiled(loop)
