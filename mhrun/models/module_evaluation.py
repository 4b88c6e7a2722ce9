"""Evaluation of one module at the parameters of many chains: base of all implementations."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mhrun.errors import UserError
from mhrun.models.module_copy import Prepared
from mhrun.types import Rows

Likelihood = Callable[[Tensor, Rows], Tensor]
Buffers = Mapping[str, Tensor]
"""The module's buffers by name, (C, ...) each."""

BOUND, VMAPPED, COMPILED = "bound", "vmapped", "compiled"


class Evaluator(ABC):
    """Evaluates a module at theta (C, D), with separate buffers for each chain.

    Args:
        prepared: the module.
        likelihood: ``(outputs, rows) -> (m,)`` for one chain.
    """

    def __init__(self, prepared: Prepared, likelihood: Likelihood) -> None:
        self._prepared = prepared
        self._likelihood = likelihood
        named = dict(prepared.module.named_parameters())
        self._names = list(named)
        self._shapes = [p.shape for p in named.values()]
        self._sizes = [p.numel() for p in named.values()]
        self._copies: dict[tuple[torch.dtype, torch.device], nn.Module] = {}

    def _module(self, theta: Tensor, *, training: bool) -> nn.Module:
        """Return the module in the type and on the device of theta, made once."""
        key = theta.dtype, theta.device
        if key not in self._copies:
            clone = copy.deepcopy(self._prepared.module).to(theta.device, theta.dtype)
            self._copies[key] = clone
        module = self._copies[key]
        for name in self._prepared.trains:
            module.get_submodule(name).training = training
        return module

    def _at_outputs(self, outputs: Any, fields: Rows) -> Any:
        """Return the likelihood at a module's outputs; under `torch.autocast`, at float32 outputs and without it."""
        kind = outputs.device.type if isinstance(outputs, Tensor) else "meta"
        if kind == "meta" or not torch.is_autocast_enabled(kind):
            return self._likelihood(outputs, fields)
        with torch.autocast(kind, enabled=False):
            return self._likelihood(outputs.float(), fields)

    def _inputs(self, theta: Tensor, rows: Rows) -> Tensor:
        if "x" not in rows:
            raise UserError(
                f"the module's inputs are the field x, and the data have {', '.join(rows)}; rename it x."
            )
        x = rows["x"]
        if x.dtype == torch.uint8:
            return x.to(theta.dtype) / 255
        if self._prepared.tokens and not x.is_floating_point():
            return x
        return x.to(theta.dtype)

    @abstractmethod
    def outputs(self, theta: Tensor, buffers: Buffers, rows: Rows) -> Tensor:
        """Return the outputs (C, m, ...) in evaluation mode."""

    @abstractmethod
    def log_lik(self, theta: Tensor, buffers: Buffers, rows: Rows) -> Tensor:
        """Return log-likelihoods (C, m) in evaluation mode."""

    @abstractmethod
    def train(self, theta: Tensor, buffers: Buffers, rows: Rows) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return log-likelihoods (C, m), the gradient (C, D) of their mean, and the buffers after it."""


def named_views(
    theta: Tensor, names: list[str], sizes: list[int], shapes: list[torch.Size]
) -> dict[str, Tensor]:
    """Return the parameters by name, as views of theta (D,)."""
    # One split: slices would have autograd fill and add a gradient of all D for each tensor.
    views = theta.split(sizes)
    return {name: view.view(shape) for name, view, shape in zip(names, views, shapes, strict=True)}


def values_kept(outputs: Callable[[Tensor, Rows], Tensor], theta: Tensor, rows: Rows) -> int:
    """Return how many values a forward pass at theta (1, D) keeps for the gradient of one datum, from two small passes.

    They are of two and three data if `rows` has so many.
    """
    theta = theta.requires_grad_()
    most = min(3, next(iter(rows.values())).shape[1])
    counts = []
    for m in (max(1, most - 1), most):
        counts.append(0)

        def pack(value: Tensor) -> Tensor:
            counts[-1] += value.numel()
            return value

        part = {name: field[:1, :m] for name, field in rows.items()}
        saving = torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value)
        with torch.enable_grad(), saving:
            outputs(theta, part)
    return max(1, counts[1] - counts[0])
