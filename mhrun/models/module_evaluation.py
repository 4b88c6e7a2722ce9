"""Two ways to evaluate one module at the parameters of many chains."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from mhrun.errors import UserError
from mhrun.models.module_copy import Prepared
from mhrun.models.recorded import Replays
from mhrun.models.returned import returned
from mhrun.types import Rows

Likelihood = Callable[[Tensor, Rows], Tensor]
Buffers = Mapping[str, Tensor]
"""The module's buffers by name, (C, ...) each."""

BOUND, VMAPPED = "bound", "vmapped"


class Evaluator(ABC):
    """Evaluates a module at theta (C, D), with a buffer of its own for each chain.

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
            found = copy.deepcopy(self._prepared.module).to(theta.device, theta.dtype)
            self._copies[key] = found
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


class Bound(Evaluator):
    """A real module whose parameters are views of theta[c], chain after chain, with plain automatic differentiation.

    A step costs what it costs in a training loop of the same module. Any module works that works in such a loop.
    """

    def __init__(self, prepared: Prepared, likelihood: Likelihood) -> None:
        super().__init__(prepared, likelihood)
        self._tried = False

    def outputs(self, theta: Tensor, buffers: Buffers, rows: Rows) -> Tensor:
        """Return the outputs (C, m, ...) in evaluation mode."""
        return self._each(theta, buffers, rows, lambda outputs, fields: outputs)

    def log_lik(self, theta: Tensor, buffers: Buffers, rows: Rows) -> Tensor:
        """Return log-likelihoods (C, m) in evaluation mode."""
        return self._each(theta, buffers, rows, self._values)

    def train(self, theta: Tensor, buffers: Buffers, rows: Rows) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return log-likelihoods (C, m), the gradient (C, D) of their mean, and the buffers after it."""
        module = self._module(theta, training=True)
        parameters, grad, values = list(module.parameters()), torch.empty_like(theta), []
        new = {name: value.clone() for name, value in buffers.items()}
        x = self._inputs(theta, rows)
        with torch.enable_grad():
            for c in range(len(theta)):
                self._bind(module, theta[c].detach(), new, c)
                log_lik = self._values(self._run(module, x[_of(x, c)]), _fields(rows, c))
                # Without a gradient field of the parameters: autograd then need not add to one.
                found = torch.autograd.grad(log_lik.mean(), parameters, allow_unused=True)
                parts = [
                    torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1)
                    for p, g in zip(parameters, found, strict=True)
                ]
                torch.cat(parts, out=grad[c])
                values.append(log_lik.detach())
                self._collect(module, new, c)
        return _stacked(values), grad, new

    def _each(
        self, theta: Tensor, buffers: Buffers, rows: Rows, of: Callable[[Tensor, Rows], Tensor]
    ) -> Tensor:
        if theta.requires_grad and torch.is_grad_enabled():
            return self._by_call(theta, buffers, rows, of)
        module = self._module(theta, training=False)
        x = self._inputs(theta, rows)
        with torch.no_grad():
            found = []
            for c in range(len(theta)):
                self._bind(module, theta[c], buffers, c)
                found.append(of(self._run(module, x[_of(x, c)]), _fields(rows, c)))
        return _stacked(found)

    def _by_call(
        self, theta: Tensor, buffers: Buffers, rows: Rows, of: Callable[[Tensor, Rows], Tensor]
    ) -> Tensor:
        """The same as a differentiable function of theta, for those who differentiate log_lik themselves."""
        module, x = self._module(theta, training=False), self._inputs(theta, rows)
        found = []
        for c in range(len(theta)):
            named = _named(theta[c], self._names, self._sizes, self._shapes)
            named |= {name: value[c].to(module.get_buffer(name).dtype) for name, value in buffers.items()}
            found.append(of(functional_call(module, named, (x[_of(x, c)],)), _fields(rows, c)))
        return _stacked(found)

    def _bind(self, module: nn.Module, theta: Tensor, buffers: Buffers, c: int) -> None:
        views = theta.split(self._sizes)
        for parameter, view, shape in zip(module.parameters(), views, self._shapes, strict=True):
            parameter.data = view.view(shape)
        for name, value in buffers.items():
            owner, local = _place(module, name)
            owner._buffers[local] = value[c]

    def _collect(self, module: nn.Module, buffers: dict[str, Tensor], c: int) -> None:
        for name, value in buffers.items():
            owner, local = _place(module, name)
            found = owner._buffers[local]
            if (
                found is not None and found.data_ptr() != value[c].data_ptr()
            ):  # put there, not changed in place
                value[c] = found

    def _run(self, module: nn.Module, x: Tensor) -> Tensor:
        if self._tried:
            return module(x)
        before = torch.get_rng_state()
        outputs = module(x)
        if not torch.equal(torch.get_rng_state(), before):
            torch.set_rng_state(before)
            raise UserError(
                "the module draws random numbers in its forward pass, so that it has no likelihood; use nn.Dropout, "
                "which is switched off, or pass module.eval()."
            )
        self._tried = True
        return outputs

    def _values(self, outputs: Tensor, fields: Rows) -> Tensor:
        found: Any = self._at_outputs(outputs, fields)
        if not isinstance(found, Tensor):
            raise UserError(
                f"the likelihood must return a tensor (m,), and returned a {type(found).__name__}."
            )
        return returned(found[None], (1, len(next(iter(fields.values())))), "the likelihood")[0]


class Vmapped(Evaluator):
    """All chains at once by `torch.func.vmap`: one pass for many chains of a small module.

    Without buffers, whose changes a recording would not show, passes are replayed (`mhrun.models.recorded`).
    """

    def __init__(self, prepared: Prepared, likelihood: Likelihood) -> None:
        super().__init__(prepared, likelihood)
        self._replays = Replays()

    def outputs(self, theta: Tensor, buffers: Buffers, rows: Rows) -> Tensor:
        """Return the outputs (C, m, ...) in evaluation mode."""
        module = self._module(theta, training=False)
        fields, over = self._mapped(theta, rows)
        return vmap(lambda one, own, part: self._call(module, one, own, part), in_dims=(0, 0, over))(
            theta, self._typed(module, buffers), fields
        )

    def log_lik(self, theta: Tensor, buffers: Buffers, rows: Rows) -> Tensor:
        """Return log-likelihoods (C, m) in evaluation mode."""
        if not buffers:
            return self._replays(self._log_lik_of, theta, rows)[0]
        return self._log_lik_of(theta, rows, buffers)[0]

    def train(self, theta: Tensor, buffers: Buffers, rows: Rows) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return log-likelihoods (C, m), the gradient (C, D) of their mean, and the buffers after it."""
        if not buffers:
            values, grad = self._replays(self._log_lik_and_grad_of, theta, rows)
            return values, grad, {}
        return self._trained(theta, buffers, rows)

    def _log_lik_of(
        self, theta: Tensor, rows: Rows, buffers: Buffers = MappingProxyType({})
    ) -> tuple[Tensor]:
        module = self._module(theta, training=False)
        fields, over = self._mapped(theta, rows)
        found = vmap(lambda *args: self._single(module, *args)[0], in_dims=(0, 0, over))(
            theta, self._typed(module, buffers), fields
        )
        return (_all_of(found, theta, rows),)

    def _log_lik_and_grad_of(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        return self._trained(theta, {}, rows)[:2]

    def _trained(
        self, theta: Tensor, buffers: Buffers, rows: Rows
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        module = self._module(theta, training=True)
        fields, over = self._mapped(theta, rows)
        new = {name: value.clone() for name, value in self._typed(module, buffers).items()}

        def mean(one: Tensor, own: Any, part: Rows) -> tuple[Tensor, Any]:
            values, after = self._single(module, one, own, part)
            return values.mean(), (values, after)

        grad, (_, (values, after)) = vmap(grad_and_value(mean, has_aux=True), in_dims=(0, 0, over))(
            theta, new, fields
        )
        return _all_of(values, theta, rows), grad, after

    def _single(self, module: nn.Module, one: Tensor, own: Any, part: Rows) -> tuple[Tensor, Any]:
        values = self._at_outputs(self._call(module, one, own, part), part)
        return values, own

    def _call(self, module: nn.Module, one: Tensor, own: Any, part: Rows) -> Tensor:
        named = _named(one, self._names, self._sizes, self._shapes) | own
        found: Tensor = functional_call(module, named, (self._inputs(one, part),))
        return found

    @staticmethod
    def _typed(module: nn.Module, buffers: Buffers) -> dict[str, Tensor]:
        return {name: value.to(module.get_buffer(name).dtype) for name, value in buffers.items()}

    @staticmethod
    def _mapped(theta: Tensor, rows: Rows) -> tuple[Rows, int | None]:
        """Return the rows in the form that vmap needs, and the dimension over which it maps."""
        if len(next(iter(rows.values()))) == 1 and len(theta) > 1:
            return {name: field[0] for name, field in rows.items()}, None
        return dict(rows), 0


def _named(theta: Tensor, names: list[str], sizes: list[int], shapes: list[torch.Size]) -> dict[str, Tensor]:
    # One split: slices would have autograd fill and add a gradient of all D for each tensor.
    views = theta.split(sizes)
    return {name: view.view(shape) for name, view, shape in zip(names, views, shapes, strict=True)}


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    owner, _, local = name.rpartition(".")
    return module.get_submodule(owner), local


def _of(field: Tensor, c: int) -> int:
    return c if len(field) > 1 else 0


def _fields(rows: Rows, c: int) -> Rows:
    return {name: field[_of(field, c)] for name, field in rows.items()}


def _stacked(parts: list[Tensor]) -> Tensor:
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


def _all_of(found: Tensor, theta: Tensor, rows: Rows) -> Tensor:
    return returned(found, (len(theta), next(iter(rows.values())).shape[1]), "the likelihood")
