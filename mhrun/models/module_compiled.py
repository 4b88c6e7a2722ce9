"""A fully connected module evaluated in a compiled loop over the chains."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from mhrun.models import perceptron_native
from mhrun.models.module_bound import Bound
from mhrun.models.module_copy import Prepared
from mhrun.models.module_evaluation import Buffers, Likelihood
from mhrun.models.module_layers import FullyConnected
from mhrun.native.tensors import fit_for_loops
from mhrun.types import Rows

# By what log-likelihoods and gradients of the loop and of the module may differ, relative to 1 + their size.
_TOLERANCE = 1e-3


class Compiled(Bound):
    """The loop of `mhrun.models.perceptron_native`, for a classifier with the softmax of its outputs.

    What the loop cannot evaluate (tensors on a GPU, a recording, points that the caller differentiates) the module
    itself does, as in `Bound`. So it does everything if the loop's first log-likelihood or gradient differs from its
    own.

    Args:
        prepared: the module.
        likelihood: ``categorical`` of `mhrun.models.module_classes`.
        network: the module's layers.
        wanted: whether the user chose the loop, and is warned if the module is called in its place.
    """

    def __init__(
        self, prepared: Prepared, likelihood: Likelihood, network: FullyConnected, *, wanted: bool
    ) -> None:
        super().__init__(prepared, likelihood)
        self._network, self._wanted = network, wanted
        self._of_loop = network.units, "categorical", network.activations
        # Whether the loop computes what the module does; None: not compared yet
        self._agrees: bool | None = None

    def log_lik(self, theta: Tensor, buffers: Buffers, rows: Rows) -> Tensor:
        """Return log-likelihoods (C, m) in evaluation mode."""
        if (x := self._inputs_of_loop(theta, rows)) is None:
            return super().log_lik(theta, buffers, rows)
        return perceptron_native.log_lik(theta, x, rows["y"], *self._of_loop)

    def train(self, theta: Tensor, buffers: Buffers, rows: Rows) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return log-likelihoods (C, m), the gradient (C, D) of their mean, and the buffers after it: none."""
        if (x := self._inputs_of_loop(theta, rows)) is None:
            return super().train(theta, buffers, rows)
        return *perceptron_native.log_lik_and_grad(theta, x, rows["y"], *self._of_loop), {}

    def _inputs_of_loop(self, theta: Tensor, rows: Rows) -> Tensor | None:
        """Return x as (C or 1, m, k), or None if the module has to be called."""
        x, y = rows.get("x"), rows.get("y")
        if x is None or y is None or y.dim() != 2 or self._agrees is False:
            return None
        if self._network.flattens and x.dim() > 3:
            x = x.flatten(2)
        if x.dim() != 3 or x.shape[2] != self._network.units[0]:
            return None
        if not fit_for_loops(theta, x) or torch.is_autocast_enabled("cpu"):
            return None
        if self._agrees is None:
            self._agrees = self._compared(theta[:1], x[:1, :1], {name: f[:1, :1] for name, f in rows.items()})
            if self._agrees is False and self._wanted:
                warnings.warn(
                    "the module's log-likelihood or gradient is another than that of its layers in the compiled loop: "
                    "it is called itself, and evaluation=compiled is not used.",
                    UserWarning,
                    stacklevel=2,
                )
        return x if self._agrees else None

    def _compared(self, theta: Tensor, x: Tensor, rows: Rows) -> bool | None:
        """Return whether loop and module give a datum the same log-likelihood and gradient; None if not finite.

        A forward pass may depend on more than its graph shows, such as a number of Python's that was constant in it, or
        leave parameters out of the gradient.
        """
        of_module = super().train(theta, {}, rows)[:2]
        of_loop = perceptron_native.log_lik_and_grad(theta, x.contiguous(), rows["y"], *self._of_loop)
        if not all(bool(values.isfinite().all()) for values in of_module):
            return None
        return all(
            one.dtype == other.dtype and torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE)
            for one, other in zip(of_module, of_loop, strict=True)
        )
