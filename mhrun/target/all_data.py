"""Sums over all data: in parts, or by the model's own faster forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.native import native_form
from mhrun.native.forms import ROUNDING
from mhrun.target.gradients import Gradients, likelihoods
from mhrun.target.reference import in_float64
from mhrun.target.surrogate import Surrogate
from mhrun.types import Model, Rows

_FULL_PASS = 1 << 22  # most log-likelihoods in memory during a pass over all data
_VALUES = 1 << 27  # most data values in memory during a pass


class AllData:
    """Full-data sums at many parameter vectors theta (C, D) at once.

    Args:
        model: provides the log-likelihood and, optionally, faster forms for a data set: ``full_log_lik``,
            ``full_value_and_grad``, ``nodes`` (a few weighted rows that represent all data) and ``bound`` (on the
            largest term).
        read: returns the data; called on first use, because they may be large.
        gradients: gradients of the log-likelihood of a part of the data.
        surrogate: whose parts are subtracted from the terms of a difference.
    """

    def __init__(
        self,
        model: Model,
        read: Callable[[], Dataset],
        gradients: Gradients,
        surrogate: Surrogate | None = None,
    ) -> None:
        self._model = model
        self._surrogate = surrogate
        self._read = read
        self._gradients = gradients
        self._log_lik: Callable[[Tensor], Tensor] | None = None
        self._value_and_grad: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
        self._largest: Callable[[Tensor, Tensor], Tensor] | None = None
        self._nodes: list[tuple[Rows, Tensor]] | None = None
        self._values: int | None = None

    def log_lik(self, theta: Tensor) -> Tensor:
        """Return the log-likelihood (C,), float64."""
        if self._log_lik is None:
            offered = native_form(self._model, "full_log_lik", "log_lik")
            self._log_lik = offered(self._read().fields) if offered else self._log_lik_pass
        return self._log_lik(theta.double())

    def value_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-likelihood (C,) and its gradient (C, D)."""
        if self._value_and_grad is None:
            offered = native_form(self._model, "full_value_and_grad", "log_lik")
            self._value_and_grad = offered(self._read().fields) if offered else self._value_and_grad_pass
        return self._value_and_grad(theta)

    def in_one_pass(self, theta: Tensor) -> bool:
        """Return whether `value_and_grad` has the bits of `log_lik`, so that one pass suffices for both."""
        if native_form(self._model, "full_value_and_grad", "log_lik") is not None:
            return True
        return theta.dtype == torch.float64 and native_form(self._model, "full_log_lik", "log_lik") is None

    def moments(self, origin: Tensor, candidate: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance (divisor n), each (C,), of log p(x | candidate) - log p(x | origin)."""
        total = torch.zeros(len(origin), dtype=torch.float64, device=origin.device)
        squares = torch.zeros_like(total)
        for rows, weights in self._weighted(origin):
            terms = self.terms(origin, candidate, rows)
            total += (terms * weights).sum(-1)
            squares += (terms.square() * weights).sum(-1)
        n = self._read().n
        mean = total / n
        return mean, (squares / n - mean.square()).clamp_min(0.0)

    def largest(self, origin: Tensor, candidate: Tensor) -> Tensor:
        """Return the largest |log p(x | candidate) - log p(x | origin)| (C,), float64: exact, or the model's bound."""
        if self._largest is None:
            offered = None if self._surrogate else native_form(self._model, "bound", "log_lik")
            self._largest = offered(self._read().fields) if offered else self._largest_pass
        return self._largest(origin, candidate).double()

    def _log_lik_pass(self, theta: Tensor) -> Tensor:
        total = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        for rows in self._parts(theta):
            total += self._model.log_lik(theta, rows).sum(-1, dtype=torch.float64)
        return total

    def _value_and_grad_pass(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        total, grad = theta.new_zeros(len(theta)), torch.zeros_like(theta)
        for rows in self._parts(theta):
            log_lik, mean = self._gradients.log_lik_and_grad(theta, rows)
            total += log_lik.sum(-1)
            grad += mean * log_lik.shape[-1]
        return total, grad

    def _largest_pass(self, origin: Tensor, candidate: Tensor) -> Tensor:
        largest = torch.zeros(len(origin), dtype=torch.float64, device=origin.device)
        for rows in self._parts(origin):
            largest = torch.maximum(largest, self.terms(origin, candidate, rows).abs().amax(-1))
        return largest

    def terms(self, origin: Tensor, candidate: Tensor, rows: Rows) -> Tensor:
        """Return the terms of rows (C or 1, m, ...): differences of log-likelihoods, or of their remainders; (C, m)."""
        if self._surrogate is not None:
            return self.rounded_terms(origin.double(), candidate.double(), rows)[0]
        log_lik = likelihoods(self._model.log_lik(candidate, rows)).double()
        return log_lik - self._model.log_lik(origin, rows)

    def rounded_terms(self, origin: Tensor, candidate: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the terms, computed in float64, and what rounding may add to finite ones (else 0), each (C, m)."""
        exact = in_float64(self._model, rows)
        at_candidate = likelihoods(self._model.log_lik(candidate, exact)).double()
        at_origin = self._model.log_lik(origin, exact).double()
        terms = at_candidate - at_origin
        offered = native_form(self._model, "log_lik_size", "log_lik")
        if offered is None:
            size = at_candidate.abs() + at_origin.abs()
        else:
            size = offered(candidate, exact) + offered(origin, exact)
        if self._surrogate is not None:
            after, before = (self._surrogate.terms(theta, rows) for theta in (candidate, origin))
            terms, size = terms - (after - before), size + after.abs() + before.abs()
        return terms, (ROUNDING * size).nan_to_num(0.0, posinf=0.0)

    def _weighted(self, theta: Tensor) -> Iterable[tuple[Rows, Tensor | float]]:
        """Return all data in parts with weight 1, or the model's few weighted nodes."""
        if self._nodes is None:
            offered = None if self._surrogate else native_form(self._model, "nodes", "log_lik")
            self._nodes = [offered(self._read().fields)] if offered else []
        return self._nodes or ((rows, 1.0) for rows in self._parts(theta))

    def _values_per_datum(self, data: Dataset) -> int:
        """Return how many values a datum takes in memory: its own, or the activations that the model says it keeps."""
        if self._values is None:
            self._values = max(1, max(value[0].numel() for value in data.fields.values()))
            measured = native_form(self._model, "values_per_datum", "log_lik")
            if measured is not None:
                self._values = max(self._values, measured(data.part(0, min(3, data.n))))
        return self._values

    def _parts(self, theta: Tensor) -> Iterator[Rows]:
        """Yield all data in parts small enough for the log-likelihoods of every chain to fit in memory."""
        data = self._read()
        part = max(1, min(_FULL_PASS // len(theta), _VALUES // self._values_per_datum(data)))
        for start in range(0, data.n, part):
            yield data.part(start, min(start + part, data.n))
