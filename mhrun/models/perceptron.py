"""Fully connected networks (Li & Wong 2017, section 4.3; Wu, Wang & Wong 2020, section 3.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from mhrun.errors import Refusal, UserError, nearest
from mhrun.models import perceptron_native
from mhrun.models.classes import LIKELIHOODS
from mhrun.models.weights import precision_of
from mhrun.native.vectors import square_sum
from mhrun.random import Draws, Purpose
from mhrun.types import Field, ParameterBlock, Rows


class Layer(NamedTuple):
    """The position of a layer in theta."""

    weight: slice  # the flattened weights (outputs, inputs)
    bias: slice
    shape: tuple[int, int]  # outputs, inputs


class Perceptron:
    """A fully connected network for classification; theta concatenates W1, b1, W2, b2, ...

    Fields: ``x`` (n, inputs), where bytes are pixels k/255, and ``y`` (n,), the class. All chains are evaluated
    together; one forward and one backward pass give log-likelihood and gradient.

    Args:
        layers: units of each layer, such as [784, 200, 10].
        prior_variance: prior variance of every weight and bias, N(0, variance); flat if None.
        likelihood: ``categorical``: log-softmax of the class; ``clipped_binary``: see `mhrun.models.classes`.
        weight_sd: standard deviation of the initial weights; None: sqrt(2 / inputs) (He et al. 2015).
        bias_sd: standard deviation of the initial biases.

    Raises:
        Refusal: an invalid setting.
    """

    reads_pixels = True

    def __init__(
        self,
        layers: Sequence[int],
        prior_variance: float | None = None,
        likelihood: Literal["categorical", "clipped_binary"] = "categorical",
        weight_sd: float | None = None,
        bias_sd: float = 0.0,
    ) -> None:
        if len(layers) < 2 or min(layers) < 1:
            raise Refusal(f"layers = {list(layers)} must be at least two counts of units.")
        if likelihood not in LIKELIHOODS:
            raise Refusal(f"there is no likelihood '{likelihood}'.{nearest(likelihood, LIKELIHOODS)}")
        if not (bias_sd >= 0 and (weight_sd is None or weight_sd >= 0)):
            raise Refusal(
                f"Perceptron needs weight_sd >= 0, or null, and bias_sd >= 0; they are {weight_sd} and {bias_sd}."
            )
        self.layers: list[Layer] = []
        at = 0
        for inputs, outputs in pairwise(int(units) for units in layers):
            middle, end = at + inputs * outputs, at + inputs * outputs + outputs
            self.layers.append(Layer(slice(at, middle), slice(middle, end), (outputs, inputs)))
            at = end
        self.dim = at
        self.units = [int(units) for units in layers]
        self.inputs, self.classes = self.units[0], self.units[-1]
        self.precision = precision_of(prior_variance, self)
        self.weight_sd = weight_sd
        self.bias_sd = bias_sd
        self.likelihood = likelihood
        self.blocks: Sequence[ParameterBlock] = [
            ParameterBlock(f"{kind}{i}", span.start, span.stop, kind == "W")
            for i, layer in enumerate(self.layers, 1)
            for kind, span in (("W", layer.weight), ("b", layer.bias))
        ]

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n, inputs) and ``y`` (n,), a class."""
        return {
            "x": Field((self.inputs,), setting="the first of model.layers"),
            "y": Field((), "classes", self.classes),
        }

    @property
    def names(self) -> Sequence[str]:
        """The name of each parameter: its block and its index there."""
        return tuple(f"{b.name}[{i}]" for b in self.blocks for i in range(b.stop - b.start))

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return initial parameters (C, D), float32."""
        theta = draws.normal(Purpose.INIT, self.dim, dtype=torch.float32).clone()
        for layer in self.layers:
            theta[:, layer.weight] *= (
                math.sqrt(2 / layer.shape[1]) if self.weight_sd is None else self.weight_sd
            )
            theta[:, layer.bias] *= self.bias_sd
        return theta

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) -> (C,), summed in float64."""
        if not self.precision:
            return theta.new_zeros(len(theta), dtype=torch.float64)
        return -0.5 * self.precision * square_sum(theta)

    def log_prior_grad(self, theta: Tensor) -> Tensor | None:
        """Return the gradient (C, D) of the log prior; None if it is flat."""
        return theta * -self.precision if self.precision else None

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D) and rows (C or 1, m, ...) -> (C, m)."""
        x = self._x(rows)
        if perceptron_native.is_compiled(theta, x):
            return perceptron_native.log_lik(theta, x, rows["y"], self.units, self.likelihood)
        return LIKELIHOODS[self.likelihood](self._forward(theta, self._inputs(theta, x))[-1], rows["y"])[0]

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return log-likelihoods (C, m) and the gradient (C, D) of their mean."""
        x = self._x(rows)
        if perceptron_native.is_compiled(theta, x):
            return perceptron_native.log_lik_and_grad(theta, x, rows["y"], self.units, self.likelihood)
        values = self._forward(theta, self._inputs(theta, x))
        log_lik, delta = LIKELIHOODS[self.likelihood](values[-1], rows["y"])
        delta = delta / log_lik.shape[1]
        grad = torch.empty_like(theta)
        for i in reversed(range(len(self.layers))):
            layer = self.layers[i]
            grad[:, layer.weight] = torch.matmul(delta.transpose(1, 2), values[i]).flatten(1)
            grad[:, layer.bias] = delta.sum(1)
            if i:
                delta = torch.matmul(delta, _matrix(theta, layer))
                delta = torch.ops.aten.threshold_backward(delta, values[i], 0)  # of relu: one pass
        return log_lik, grad

    def predict(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the log-probability of each class, (C, m, K)."""
        return torch.log_softmax(self._forward(theta, self._inputs(theta, self._x(rows)))[-1], -1)

    def _x(self, rows: Rows) -> Tensor:
        if not {"x", "y"} <= set(rows):
            raise UserError(f"a network reads the fields x and y, and the data have {', '.join(rows)}.")
        x = rows["x"]
        if x.dim() != 3 or x.shape[-1] != self.inputs:
            raise UserError(
                f"the network has {self.inputs} inputs and a row of x the shape {tuple(x.shape[2:])}."
            )
        return x

    def _inputs(self, theta: Tensor, x: Tensor) -> Tensor:
        return x.to(theta.dtype).mul_(1 / 255) if x.dtype == torch.uint8 else x.to(theta.dtype)

    def _forward(self, theta: Tensor, x: Tensor) -> list[Tensor]:
        """Return the inputs of each layer, followed by the outputs of the last."""
        values = [x]
        for layer in self.layers:
            weights, bias = _matrix(theta, layer).transpose(1, 2), theta[:, None, layer.bias]
            values.append(torch.baddbmm(bias, values[-1].expand(len(theta), -1, -1), weights))
            if layer is not self.layers[-1]:
                torch.relu_(values[-1])
        return values


def _matrix(flat: Tensor, layer: Layer) -> Tensor:
    """Return the weights of a layer (C, outputs, inputs), a view."""
    return flat[:, layer.weight].unflatten(1, layer.shape)
