"""Lower bounds of the log-likelihood, quadratic in theta, whose sum over all data is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.native.forms import GAP_ROUNDING
from mhrun.target.reference import find_reference, gradient_of_sum, hessian_of_sum, in_float64
from mhrun.target.surrogate import Sums, Surrogate
from mhrun.types import Model, Reference, Rows
from mhrun.types.capabilities import HasLowerBounds, offers


class LowerBound(Surrogate):
    """t_i(theta) = log B_i(theta) <= l_i(theta), quadratic in theta; see `mhrun.types.Model`.

    A surrogate like a Taylor polynomial of order 2: its sum over all data is a stored quadratic form. Where a bound
    touches l_i, the gradients agree.

    Args:
        model: provides ``lower_bound``.
        read: returns the data; called on first use.
        tuned: whether the bounds touch at the posterior mode, which is searched for; otherwise the model's choice.
    """

    def __init__(self, model: Model, read: Callable[[], Dataset], *, tuned: bool) -> None:
        super().__init__(model, read, order=2)
        assert offers(model, HasLowerBounds)
        self._bounded = model
        self.tuned = tuned

    @property
    def kind(self) -> None:
        """None: no model bounds the terms of the remainders."""
        return None

    @property
    def sums(self) -> Sums:
        """The point about which the quadratic form is expanded, and its derivatives there; found on first use.

        Raises:
            UserError: no mode was found.
        """
        if self._sums is None:
            data = self._read()
            root: Tensor | None = None
            if self.tuned:
                reference = find_reference(self._model, data)
                theta, root, self.n_grad = reference.theta, reference.root, reference.n_grad
            else:
                theta = torch.zeros(self._model.dim, dtype=torch.float64, device=data.device)
            bound = _AsLogLik(self._model, partial(self._bounds_at, theta if self.tuned else None))
            gradient, hessian = gradient_of_sum(bound, data, theta), hessian_of_sum(bound, data, theta)
            self._sums = Sums(Reference(theta, root), gradient, hessian)
            self.n_grad += data.n * (1 + len(theta))
        return self._sums

    def terms(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return log B_i(theta) of the data `rows` (C or 1, m, ...), (C, m), float64."""
        return self._bounds_at(self.sums.reference.theta if self.tuned else None, theta.double(), rows)

    def gaps(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return l_i - log B_i (C, m), computed in float64, and what rounding may add to it."""
        log_lik = self._model.log_lik(theta.double(), in_float64(self._model, rows)).double()
        bound = self.terms(theta, rows)
        return log_lik - bound, GAP_ROUNDING * (1 + log_lik.abs() + bound.abs())

    def _bounds_at(self, anchor: Tensor | None, theta: Tensor, rows: Rows) -> Tensor:
        """Return the bounds that touch at the anchor (D,), or where the model chooses."""
        return self._bounded.lower_bound(theta, rows, anchor)


class _AsLogLik:
    """A model whose log-likelihood is the bound."""

    def __init__(self, model: Model, bound: Callable[[Tensor, Rows], Tensor]) -> None:
        self._model = model
        self.log_lik = bound

    def in_float64(self, rows: Rows) -> Rows:
        """As the model."""
        return in_float64(self._model, rows)
