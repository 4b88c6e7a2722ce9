"""A module evaluated at the parameters of all chains at once."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from mhrun.models.module_copy import Prepared
from mhrun.models.module_evaluation import Buffers, Evaluator, Likelihood, named_views
from mhrun.models.recorded import Replays
from mhrun.models.returned import returned
from mhrun.types import Rows


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
        fields, axes = self._mapped(theta, rows)
        return vmap(
            lambda point, chain_buffers, part: self._call(module, point, chain_buffers, part),
            in_dims=(0, 0, axes),
        )(theta, self._typed(module, buffers), fields)

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
        fields, axes = self._mapped(theta, rows)
        values = vmap(lambda *args: self._single(module, *args)[0], in_dims=(0, 0, axes))(
            theta, self._typed(module, buffers), fields
        )
        return (_all_of(values, theta, rows),)

    def _log_lik_and_grad_of(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        return self._trained(theta, {}, rows)[:2]

    def _trained(
        self, theta: Tensor, buffers: Buffers, rows: Rows
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        module = self._module(theta, training=True)
        fields, axes = self._mapped(theta, rows)
        copies = {name: value.clone() for name, value in self._typed(module, buffers).items()}

        def mean(point: Tensor, chain_buffers: Any, part: Rows) -> tuple[Tensor, Any]:
            values, after = self._single(module, point, chain_buffers, part)
            return values.mean(), (values, after)

        grad, (_, (values, after)) = vmap(grad_and_value(mean, has_aux=True), in_dims=(0, 0, axes))(
            theta, copies, fields
        )
        return _all_of(values, theta, rows), grad, after

    def _single(self, module: nn.Module, point: Tensor, chain_buffers: Any, part: Rows) -> tuple[Tensor, Any]:
        values = self._at_outputs(self._call(module, point, chain_buffers, part), part)
        return values, chain_buffers

    def _call(self, module: nn.Module, point: Tensor, chain_buffers: Any, part: Rows) -> Tensor:
        named = named_views(point, self._names, self._sizes, self._shapes) | chain_buffers
        outputs: Tensor = functional_call(module, named, (self._inputs(point, part),))
        return outputs

    @staticmethod
    def _typed(module: nn.Module, buffers: Buffers) -> dict[str, Tensor]:
        return {name: value.to(module.get_buffer(name).dtype) for name, value in buffers.items()}

    @staticmethod
    def _mapped(theta: Tensor, rows: Rows) -> tuple[Rows, int | None]:
        """Return the rows in the form that vmap needs, and the dimension over which it maps.

        None: the rows (m, ...) are the same for all chains.
        """
        if len(next(iter(rows.values()))) == 1 and len(theta) > 1:
            return {name: field[0] for name, field in rows.items()}, None
        return dict(rows), 0


def _all_of(log_lik: Tensor, theta: Tensor, rows: Rows) -> Tensor:
    return returned(log_lik, (len(theta), next(iter(rows.values())).shape[1]), "the likelihood")
