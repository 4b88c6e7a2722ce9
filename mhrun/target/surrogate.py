"""Taylor expansions of the log-likelihood about a reference point: control variates for minibatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.native import native_form
from mhrun.target.gradients import Gradients
from mhrun.target.reference import find_reference, in_float64
from mhrun.types import BOUND_KINDS, Model, Reference, Rows


class Sums(NamedTuple):
    """The expansion point, and the derivatives of the sum of all log-likelihoods there."""

    reference: Reference
    gradient: Tensor  # (D,)
    hessian: Tensor  # (D, D)


class Surrogate:
    """t_i(theta) = l_i(ref) + (theta - ref).grad l_i(ref) [+ 1/2 (theta - ref)^T Hess l_i(ref) (theta - ref)].

    With it, the terms of a difference are those of the remainders r_i = l_i - t_i, whose variance is smaller, and the
    sum of the t_i over all data is known exactly from its stored derivatives. Gradients of a minibatch likewise. The
    reference is the posterior mode at
    temperature 1; any point is valid, a near one is cheap.

    Args:
        model: provides the log-likelihood and, optionally, a faster ``taylor``.
        read: returns the data; called on first use.
        order: 1 or 2.
    """

    def __init__(self, model: Model, read: Callable[[], Dataset], order: int) -> None:
        self.order = order
        self._model = model
        self._read = read
        self._sums: Sums | None = None
        # Per-datum gradients spent on finding the reference and the sums; a Hessian counts as D.
        self.n_grad = 0

    @property
    def sums(self) -> Sums:
        """The expansion point and the derivatives there; found on first use.

        Raises:
            UserError: no mode was found.
        """
        if self._sums is None:
            data = self._read()
            reference = find_reference(self._model, data)
            self._sums = Sums(
                Reference(reference.theta, reference.root), reference.gradient, reference.hessian
            )
            self.n_grad = reference.n_grad
        return self._sums

    @property
    def kind(self) -> str | None:
        """The kind of the bounds on the terms of the remainders, one of `BOUND_KINDS`; None if the model has none."""
        return BOUND_KINDS[self.order]

    @property
    def reference(self) -> Reference:
        """The expansion point."""
        return self.sums.reference

    def pack(self) -> dict[str, Tensor]:
        """Return what was found, to be stored with a run."""
        (theta, root), gradient, hessian = self.sums
        tensors = {
            "theta": theta,
            "gradient": gradient,
            "hessian": hessian,
            "n_grad": torch.tensor(self.n_grad),
        }
        return tensors if root is None else tensors | {"root": root}

    def unpack(self, stored: dict[str, Tensor]) -> None:
        """Use what was stored."""
        reference = Reference(stored["theta"], stored.get("root"))
        self._sums = Sums(reference, stored["gradient"], stored["hessian"])
        self.n_grad = int(stored["n_grad"])

    def total(self, theta: Tensor) -> Tensor:
        """Return the sum over all data of t_i(theta) - t_i(ref), (C,), float64."""
        sums = self.sums
        step = theta.double() - sums.reference.theta
        first = step @ sums.gradient
        return first if self.order == 1 else first + 0.5 * ((step @ sums.hessian) * step).sum(-1)

    def terms(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return t_i(theta) - t_i(ref) of the data `rows` (C or 1, m, ...), (C, m), float64."""
        reference = self.reference.theta
        offered = native_form(self._model, "taylor", "log_lik")
        if offered is not None:
            terms: Tensor = offered(theta.double(), reference, rows, self.order).double()
            return terms
        return self._by_autodiff(theta.double(), in_float64(self._model, rows))

    def gradient_error(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return mean_rows grad t_i(theta) - mean_all grad t_i(theta), (C, D), float64: a control variate.

        It has mean 0 over minibatches. The mean gradient of the log-likelihoods of `rows` (C or 1, m, ...) minus it has
        a smaller variance.
        """
        sums = self.sums
        total = sums.gradient
        if self.order == 2:
            total = total + (theta.double() - sums.reference.theta) @ sums.hessian
        return self._mean_gradient(theta.double(), rows) - total / self._read().n

    def remainder_gradient(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the mean over rows (C, m, ...) of grad r_i(theta), (C, D), and the mean of grad l_i, both float64."""
        exact = in_float64(self._model, rows)
        log_lik_grad = Gradients(self._model).log_lik_and_grad(theta.double(), exact)[1].double()
        return log_lik_grad - self._mean_gradient(theta.double(), rows), log_lik_grad

    def _mean_gradient(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the mean over rows (C or 1, m, ...) of the gradients of t_i, (C or 1, D)."""
        if self.order == 1:  # it is the same everywhere
            exact = in_float64(self._model, rows)
            reference = self.reference.theta.repeat(len(next(iter(rows.values()))), 1)
            return Gradients(self._model).log_lik_and_grad(reference, exact)[1].double()
        with torch.enable_grad():
            point = theta.detach().requires_grad_()
            mean = self.terms(point, rows).mean(-1).sum()
            (grad,) = torch.autograd.grad(mean, point)
        return grad

    def _by_autodiff(self, theta: Tensor, rows: Rows) -> Tensor:
        # Directional derivatives by reverse mode twice: sum_i u_i l_i has the directional derivative sum_i u_i l_i',
        # whose derivative with respect to u_i is l_i'. Forward mode takes several times as long in torch.
        at = self.reference.theta.repeat(len(theta), 1).requires_grad_()
        step = theta - at.detach()
        with torch.enable_grad():
            log_lik = self._model.log_lik(at, rows).double()
            u = torch.zeros_like(log_lik, requires_grad=True)
            first = (_derivative((log_lik * u).sum(), at) * step).sum()
            terms = _derivative(first, u)
            if self.order == 2:
                second = (_derivative(first, at) * step).sum()
                terms = terms + 0.5 * _derivative(second, u)
        return terms if theta.requires_grad else terms.detach()


def _derivative(value: Tensor, of: Tensor) -> Tensor:
    """Return a derivative that can be differentiated again; zeros where the value does not depend on `of`."""
    if not value.requires_grad:
        return torch.zeros_like(of)
    return torch.autograd.grad(value, of, create_graph=True, materialize_grads=True)[0]
