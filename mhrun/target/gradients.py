"""Gradients of a model: analytic if the model provides them, otherwise by automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from mhrun.models.autograd import log_lik_and_grad, log_prior_grad
from mhrun.native import native_form
from mhrun.native.vectors import combined
from mhrun.target.precision import FP32, lowered
from mhrun.types import Model, Rows
from mhrun.types.capabilities import HasBuffers, offers


class Gradients:
    """Gradients of the log-likelihood and the log-prior at many parameter vectors theta (C, D) at once.

    Args:
        model: whose gradients they are.
        precision: format of the products of log-likelihood gradients, see `Precision`.
        device: of the computation.
    """

    def __init__(self, model: Model, precision: str = FP32, device: torch.device | str = "cpu") -> None:
        self._model = model
        self._precision, self._device = precision, torch.device(device)
        self._both: Callable[[Tensor, Rows], tuple[Tensor, Tensor]] | None = None

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m) of rows and the gradient (C, D) of their mean, from one pass."""
        if self._both is None:
            self._both = native_form(self._model, "log_lik_and_grad", "log_lik") or self._by_autograd
        if self._precision == FP32:
            return self._both(theta, rows)
        with lowered(self._precision, self._device):
            return self._both(theta, rows)

    def train(
        self, theta: Tensor, buffers: Mapping[str, Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the same in training mode, and the buffers afterwards, name -> (C, ...)."""
        assert offers(self._model, HasBuffers)
        with lowered(self._precision, self._device):
            return self._model.train(theta, buffers, rows)

    def _by_autograd(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        return log_lik_and_grad(lambda point: self._model.log_lik(point, rows), theta)

    def scaled_with_prior(self, grad: Tensor, n: int, theta: Tensor, factor: Tensor) -> Tensor:
        """Return n grad + factor times the gradient of the log-prior, in place; factor (C,)."""
        offered = native_form(self._model, "prior_precision", "log_prior")
        precision = None if offered is None else offered()
        if precision is None:
            return self.add_prior(grad.mul_(n), theta, factor)
        return combined(grad, theta, n, factor * -precision) if precision else grad.mul_(n)

    def add_prior(self, grad: Tensor, theta: Tensor, factor: Tensor) -> Tensor:
        """Return grad + factor times the gradient of the log-prior, in place; factor (C,)."""
        factors = factor[:, None].to(grad.dtype)
        offered = native_form(self._model, "log_prior_grad", "log_prior")
        if offered is not None:
            prior_grad = offered(theta)
            return grad if prior_grad is None else grad.addcmul_(prior_grad, factors)
        by_autograd = native_form(self._model, "log_prior_autograd", "log_prior")
        prior_grad = by_autograd(theta) if by_autograd else log_prior_grad(self._model.log_prior, theta)
        return grad if prior_grad is None else grad.add_(factors * prior_grad)


def likelihoods(values: Tensor) -> Tensor:
    """Return values with +infinity, an invalid log-likelihood, replaced by NaN, which every rule rejects and counts."""
    return values.masked_fill(values == torch.inf, torch.nan)
