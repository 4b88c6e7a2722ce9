"""A module evaluated chain after chain, bound to the parameters of each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mhrun.errors import UserError
from mhrun.models.module_copy import Prepared
from mhrun.models.module_evaluation import Buffers, Evaluator, Likelihood, named_views
from mhrun.models.returned import returned
from mhrun.torch_private import is_fake
from mhrun.types import Rows


class Bound(Evaluator):
    """A real module whose parameters are views of theta[c], chain after chain, with plain automatic differentiation.

    A step costs what it costs in a training loop of the same module. Any module works that works in such a loop.
    """

    def __init__(self, prepared: Prepared, likelihood: Likelihood) -> None:
        super().__init__(prepared, likelihood)
        self._tried = False
        self._found: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}

    def outputs(self, theta: Tensor, buffers: Buffers, rows: Rows) -> Tensor:
        """Return the outputs (C, m, ...) in evaluation mode."""
        return self._each(theta, buffers, rows, lambda outputs, fields: outputs)

    def log_lik(self, theta: Tensor, buffers: Buffers, rows: Rows) -> Tensor:
        """Return log-likelihoods (C, m) in evaluation mode."""
        return self._each(theta, buffers, rows, self._values)

    def train(self, theta: Tensor, buffers: Buffers, rows: Rows) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return log-likelihoods (C, m), the gradient (C, D) of their mean, and the buffers after it."""
        if is_fake(theta):
            return self._train_by_call(theta, buffers, rows)
        module = self._module(theta, training=True)
        parameters, grad, values = self._parameters(module, theta), torch.empty_like(theta), []
        updated = {name: value.clone() for name, value in buffers.items()}
        x = self._inputs(theta, rows)
        with torch.enable_grad():
            for c in range(len(theta)):
                self._bind(module, theta[c].detach(), updated, c)
                log_lik = self._values(self._run(module, x[_row_of(x, c)]), _fields(rows, c))
                # Without a gradient field of the parameters: autograd then need not add to one.
                grads = torch.autograd.grad(log_lik.mean(), parameters, allow_unused=True)
                parts = [
                    torch.zeros_like(p).reshape(-1) if g is None else g.reshape(-1)
                    for p, g in zip(parameters, grads, strict=True)
                ]
                torch.cat(parts, out=grad[c])
                values.append(log_lik.detach())
                self._collect(module, updated, c)
        return _stacked(values), grad, updated

    def _each(
        self, theta: Tensor, buffers: Buffers, rows: Rows, function: Callable[[Tensor, Rows], Tensor]
    ) -> Tensor:
        if (theta.requires_grad and torch.is_grad_enabled()) or is_fake(theta):
            return self._by_call(theta, buffers, rows, function)
        module = self._module(theta, training=False)
        x = self._inputs(theta, rows)
        with torch.no_grad():
            values = []
            for c in range(len(theta)):
                self._bind(module, theta[c], buffers, c)
                values.append(function(self._run(module, x[_row_of(x, c)]), _fields(rows, c)))
        return _stacked(values)

    def _by_call(
        self, theta: Tensor, buffers: Buffers, rows: Rows, function: Callable[[Tensor, Rows], Tensor]
    ) -> Tensor:
        """The same as a differentiable function of theta, for callers that differentiate log_lik themselves."""
        module, x = self._module(theta, training=False), self._inputs(theta, rows)
        values, traced = [], is_fake(theta)
        for c in range(len(theta)):
            named = named_views(theta[c], self._names, self._sizes, self._shapes)
            named |= {name: value[c].to(module.get_buffer(name).dtype) for name, value in buffers.items()}
            with _recordable() if traced else nullcontext():
                outputs = functional_call(module, named, (x[_row_of(x, c)],))
            values.append(function(outputs, _fields(rows, c)))
        return _stacked(values)

    def _train_by_call(
        self, theta: Tensor, buffers: Buffers, rows: Rows
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """`train` as a function of its tensors alone: a trace does not see what a module is bound to."""
        module, x = self._module(theta, training=True), self._inputs(theta, rows)
        values, grads, after = [], [], []
        for c in range(len(theta)):
            with torch.enable_grad():
                views = named_views(theta[c].detach(), self._names, self._sizes, self._shapes)
                named = {name: view.detach().requires_grad_() for name, view in views.items()}
                copies = {name: value[c].clone() for name, value in buffers.items()}
                leaves, tensors = list(named.values()), {**named, **copies}
                with _recordable():
                    outputs = functional_call(module, tensors, (x[_row_of(x, c)],))
                log_lik = self._values(outputs, _fields(rows, c))
                leaf_grads = torch.autograd.grad(
                    log_lik.mean(), leaves, allow_unused=True, materialize_grads=True
                )
            values.append(log_lik.detach())
            grads.append(torch.cat([g.reshape(-1) for g in leaf_grads]))
            # The call puts buffers that the module assigned, not changed in place, back into `tensors`.
            after.append({name: tensors[name].detach() for name in copies})
        updated = {name: torch.stack([chain_buffers[name] for chain_buffers in after]) for name in buffers}
        return _stacked(values), _stacked(grads), updated

    def _bind(self, module: nn.Module, theta: Tensor, buffers: Buffers, c: int) -> None:
        views = theta.split(self._sizes)
        parameters = self._parameters(module, theta)
        for parameter, view, shape in zip(parameters, views, self._shapes, strict=True):
            parameter.data = view.view(shape)
        for name, value in buffers.items():
            owner, local = _place(module, name)
            owner._buffers[local] = value[c]

    def _parameters(self, module: nn.Module, theta: Tensor) -> list[nn.Parameter]:
        """Return the parameters of the module in the type and on the device of theta; a module walks its layers."""
        key = theta.dtype, theta.device
        if key not in self._found:
            self._found[key] = list(module.parameters())
        return self._found[key]

    def _collect(self, module: nn.Module, buffers: dict[str, Tensor], c: int) -> None:
        for name, value in buffers.items():
            owner, local = _place(module, name)
            current = owner._buffers[local]
            if (
                current is not None and current.data_ptr() != value[c].data_ptr()
            ):  # put there, not changed in place
                value[c] = current

    def _run(self, module: nn.Module, x: Tensor) -> Tensor:
        if self._tried:
            return module(x)
        state = torch.get_rng_state()
        outputs = module(x)
        if not torch.equal(torch.get_rng_state(), state):
            torch.set_rng_state(state)
            raise UserError(
                "the module draws random numbers in its forward pass, so that it has no likelihood; use nn.Dropout, "
                "which is switched off, or pass module.eval()."
            )
        if not isinstance(outputs, Tensor):
            raise UserError(
                f"the module returns a {type(outputs).__name__}, and must return one tensor (m, ...); return one "
                "output, or join several in the last dimension and take them apart in a likelihood=."
            )
        self._tried = True
        return outputs

    def _values(self, outputs: Tensor, fields: Rows) -> Tensor:
        log_lik: Any = self._at_outputs(outputs, fields)
        if not isinstance(log_lik, Tensor):
            raise UserError(
                f"the likelihood must return a tensor (m,), and returned a {type(log_lik).__name__}."
            )
        return returned(log_lik[None], (1, len(next(iter(fields.values())))), "the likelihood")[0]


def _recordable() -> AbstractContextManager[Any]:
    """Return a context without oneDNN, whose recurrent layer keeps its workspace for a gradient out of a trace."""
    return torch.backends.mkldnn.flags(enabled=False, allow_tf32=torch.backends.mkldnn.allow_tf32)


def _place(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    owner, _, local = name.rpartition(".")
    return module.get_submodule(owner), local


def _row_of(field: Tensor, c: int) -> int:
    return c if len(field) > 1 else 0


def _fields(rows: Rows, c: int) -> Rows:
    return {name: field[_row_of(field, c)] for name, field in rows.items()}


def _stacked(parts: list[Tensor]) -> Tensor:
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)
