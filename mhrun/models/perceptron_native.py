"""Log-likelihoods and gradients of fully connected networks in one compiled loop over the chains.

A chain is evaluated from its inputs to its gradient before the next, so that its numbers stay in the cache, and no
function of torch is called between two products. The matrix products are those of SciPy's BLAS, with one thread each:
threads share the chains, and blocks of `ROWS` data of a chain. A chain's numbers depend on neither threads nor other
chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import UserError
from mhrun.models.classes_native import NATIVE, NATIVE_64
from mhrun.native import Piece, compiled, over_chains
from mhrun.native.maths import sigmoid_32, sigmoid_64, tanh_32, tanh_64
from mhrun.native.products import single_threaded_products
from mhrun.native.tensors import fit_for_loops
from mhrun.native.vectors import LONG

ROWS = 512  # data of a chain that are evaluated at once

RELU, TANH, SIGMOID = "relu", "tanh", "sigmoid"
ACTIVATIONS = (RELU, TANH, SIGMOID)
"""Between the layers; the derivative of each is a function of its value."""
_IDENTITY, _RELU, _TANH, _SIGMOID = range(4)  # in the loop
_CODES = {RELU: _RELU, TANH: _TANH, SIGMOID: _SIGMOID}


def is_compiled(theta: Tensor, x: Tensor) -> bool:
    """Return whether the compiled loop is for points (C, D) and inputs (C or 1, m, k), see `fit_for_loops`.

    It is for float32 and networks of at least `LONG` parameters.
    """
    return theta.shape[1] >= LONG and theta.dtype == torch.float32 and fit_for_loops(theta, x)


def log_lik(
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    units: Sequence[int],
    likelihood: str,
    activations: Sequence[str] | None = None,
) -> Tensor:
    """Return log-likelihoods (C, m), as theta; the arguments are those of `log_lik_and_grad`."""
    return _evaluated(theta, x, y, units, likelihood, activations, None)


def log_lik_and_grad(
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    units: Sequence[int],
    likelihood: str,
    activations: Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log-likelihoods (C, m) and the gradient (C, D) of their mean, as theta.

    Args:
        theta: points (C, D) that fit (`fit_for_loops`), float32, or float64 with a likelihood in `NATIVE_64`.
        x: inputs (C or 1, m, k); bytes are pixels k/255.
        y: classes (C or 1, m).
        units: of each layer, from the inputs to the outputs.
        likelihood: a name in `mhrun.models.classes.LIKELIHOODS`.
        activations: of `ACTIVATIONS`, that of each layer but the last; None: ReLU.

    Raises:
        UserError: a class that is negative, or K or more.
        ValueError: shapes that do not belong together.
    """
    grad = torch.empty_like(theta)
    return _evaluated(theta, x, y, units, likelihood, activations, grad), grad


def _evaluated(
    theta: Tensor,
    x: Tensor,
    y: Tensor,
    units: Sequence[int],
    likelihood: str,
    activations: Sequence[str] | None,
    grad: Tensor | None,
) -> Tensor:
    chains, m = len(theta), x.shape[1]
    dim = sum(outputs * (inputs + 1) for inputs, outputs in pairwise(units))
    # Compiled loops check no bounds.
    if theta.shape[1] != dim or not {len(x), len(y)} <= {1, chains} or y.shape[1] != m:
        raise ValueError(
            f"points {tuple(theta.shape)}, inputs {tuple(x.shape)} and classes {tuple(y.shape)} do not belong "
            f"together: (C, {dim}), (C or 1, m, {units[0]}) and (C or 1, m)."
        )
    y = y.long().contiguous()
    x = x if x.dtype in (torch.uint8, torch.float32) else x.to(theta.dtype)
    wide = theta.dtype == torch.float64
    hidden = (RELU,) * (len(units) - 2) if activations is None else activations
    codes = np.array([*(_CODES[name] for name in hidden), _IDENTITY])
    scale = (np.float64 if wide else np.float32)(1 / 255 if x.dtype == torch.uint8 else 1)
    blocks = max(1, -(-m // ROWS))
    values, is_class = theta.new_empty(chains, m), np.empty(chains * blocks, np.bool_)
    parts = grad  # of the gradient, which the data of a block contribute
    if grad is None:
        parts = theta.new_empty(1, 1)
    elif blocks > 1:
        parts = theta.new_empty(chains * blocks, dim)
    assert parts is not None
    inputs = (theta.numpy(), x.numpy(), y.numpy(), scale, np.array(units), codes, grad is not None)
    results = (values.numpy(), parts.numpy(), is_class)
    with single_threaded_products():
        over_chains(
            _loop(
                (NATIVE_64 if wide else NATIVE)[likelihood],
                *((tanh_64, sigmoid_64) if wide else (tanh_32, sigmoid_32)),
            ),
            chains * blocks,
            torch.get_num_threads(),
            *inputs,
            *results,
            own=lambda part: None,
        )
    if grad is not None and blocks > 1:
        torch.sum(parts.unflatten(0, (chains, blocks)), 1, out=grad)
    if not is_class.all():
        wrong, classes = y[(y < 0) | (y >= units[-1])][0], units[-1]
        raise UserError(f"y holds the class {wrong}; with {classes} outputs, classes are 0 to {classes - 1}.")
    return values


@lru_cache(maxsize=4)  # likelihoods in float32, and one in float64
def _loop(likelihood: Piece, tanh: Piece, sigmoid: Piece) -> Piece:
    def loop(
        first: Any,
        last: Any,
        own: Any,
        theta: Any,
        x: Any,
        y: Any,
        scale: Any,
        units: Any,
        codes: Any,
        wants_grad: Any,
        values: Any,
        grad: Any,
        is_class: Any,
    ) -> None:
        number = theta.dtype.type  # the type of all that is computed
        n, depth, widest = x.shape[1], len(units) - 1, units[1:].max()
        blocks = max(1, (n + ROWS - 1) // ROWS)
        activations = np.empty(min(n, ROWS) * units.sum(), theta.dtype)
        deltas = np.empty((2, min(n, ROWS) * widest), theta.dtype)  # derivatives by two neighbouring layers
        for part in range(first, last):
            c, start = part // blocks, part % blocks * ROWS
            m = min(ROWS, n - start)
            inputs = activations[: m * units[0]].reshape(m, units[0])
            rows, labels = x[min(c, len(x) - 1)], y[min(c, len(y) - 1)]
            for j in range(m):
                for k in range(units[0]):
                    inputs[j, k] = number(rows[start + j, k]) * scale

            point, parameter, activation = theta[c], 0, 0  # the places of a layer in theta and in activations
            for i in range(depth):
                inward, outward = units[i], units[i + 1]
                weights = point[parameter : parameter + outward * inward].reshape(outward, inward)
                parameter += outward * inward
                bias = point[parameter : parameter + outward]
                parameter += outward
                inputs = activations[activation : activation + m * inward].reshape(m, inward)
                activation += m * inward
                outputs = activations[activation : activation + m * outward].reshape(m, outward)
                np.dot(inputs, weights.T, outputs)
                if codes[i] == _TANH:
                    for j in range(m):
                        for k in range(outward):
                            outputs[j, k] = tanh(outputs[j, k] + bias[k])
                elif codes[i] == _SIGMOID:
                    for j in range(m):
                        for k in range(outward):
                            outputs[j, k] = sigmoid(outputs[j, k] + bias[k])
                else:
                    lowest = number(0) if codes[i] == _RELU else number(-np.inf)
                    for j in range(m):
                        for k in range(outward):
                            value = outputs[j, k] + bias[k]
                            outputs[j, k] = lowest if value < lowest else value  # NaN stays

            classes = units[depth]
            logits = activations[activation : activation + m * classes].reshape(m, classes)
            delta = deltas[0, : m * classes].reshape(m, classes)
            span = slice(start, start + m)
            is_class[part] = likelihood(logits, labels[span], values[c, span], delta)
            if not wants_grad or not is_class[part]:
                continue
            for j in range(m):
                for k in range(classes):
                    delta[j, k] /= number(n)

            for back in range(depth):
                i = depth - 1 - back
                inward, outward = units[i], units[i + 1]
                parameter -= outward
                bias_grad = grad[part, parameter : parameter + outward]
                bias_grad[:] = number(0)
                for j in range(m):
                    for k in range(outward):
                        bias_grad[k] += delta[j, k]
                parameter -= outward * inward
                activation -= m * inward
                inputs = activations[activation : activation + m * inward].reshape(m, inward)
                weights_grad = grad[part, parameter : parameter + outward * inward].reshape(outward, inward)
                np.dot(delta.T, inputs, weights_grad)
                if i > 0:
                    weights = point[parameter : parameter + outward * inward].reshape(outward, inward)
                    previous = deltas[(back + 1) % 2, : m * inward].reshape(m, inward)
                    np.dot(delta, weights, previous)
                    if codes[i - 1] == _TANH:
                        for j in range(m):
                            for k in range(inward):
                                previous[j, k] *= number(1) - inputs[j, k] * inputs[j, k]
                    elif codes[i - 1] == _SIGMOID:
                        for j in range(m):
                            for k in range(inward):
                                previous[j, k] *= inputs[j, k] * (number(1) - inputs[j, k])
                    else:
                        for j in range(m):
                            for k in range(inward):
                                previous[j, k] = number(0) if inputs[j, k] <= number(0) else previous[j, k]
                    delta = previous

    return compiled(loop)
