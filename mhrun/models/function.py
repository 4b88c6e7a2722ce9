"""A model from Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mhrun.errors import UserError
from mhrun.models.naming import numbered
from mhrun.models.returned import returned, unchanged
from mhrun.random import Draws
from mhrun.types import Rows

PerDatum = Callable[[Tensor, Any], Tensor]


class FunctionModel:
    """A prior and a likelihood given as functions of one chain's parameters.

    Args:
        log_lik: ``(theta (D,), batch) -> (m,)``, the log-likelihood of each datum. `batch` holds the rows
            of the minibatch: a mapping of fields (m, ...), or one tensor if `single`.
        start: starting point, (D,) or one row per chain (C, D).
        log_prior: ``theta (D,) -> ()``; flat if None.
        names: names of the parameters.
        single: pass only the field ``x``, as a tensor.
        batched: the functions take all chains at once, theta (C, D) and rows (C or 1, m, ...), and
            return (C, m) and (C,). Otherwise they are vectorised by `torch.func.vmap`.

    Raises:
        UserError: a function returns a wrong shape.
    """

    def __init__(
        self,
        log_lik: PerDatum,
        start: Any,
        log_prior: Callable[[Tensor], Tensor] | None = None,
        names: Sequence[str] | None = None,
        single: bool = False,
        batched: bool = False,
    ) -> None:
        self.start = torch.atleast_1d(torch.as_tensor(start, dtype=torch.float64))
        self.dim = self.start.shape[-1]
        self.names: Sequence[str] = tuple(names) if names is not None else numbered(self.dim)
        if len(self.names) != self.dim:
            raise UserError(f"{len(self.names)} names for {self.dim} parameters.")
        self._log_lik = log_lik
        self._log_prior = log_prior
        self._single = single
        self._batched = batched

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, D)."""
        start = self.start.to(draws.device)
        if start.dim() == 1:
            return start.repeat(chains, 1)
        if len(start) != chains:
            raise UserError(
                f"start has {len(start)} rows for {chains} chains; give one row, or one per chain."
            )
        return start

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) -> (C,)."""
        if self._log_prior is None:
            return theta.new_zeros(len(theta))
        value = self._log_prior(theta) if self._batched else torch.func.vmap(self._log_prior)(theta)
        return returned(value, (len(theta),), "log_prior")

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D) and rows (C or 1, m, ...) -> (C, m)."""
        any_field = next(iter(rows.values()))
        shared = len(any_field) == 1 and len(theta) > 1
        with unchanged(rows, "log_lik"):
            if self._batched:
                value = self._log_lik(theta, rows["x"] if self._single else rows)
            else:
                per_chain = {name: field[0] for name, field in rows.items()} if shared else dict(rows)
                batch = per_chain["x"] if self._single else per_chain
                value = torch.func.vmap(self._log_lik, in_dims=(0, None if shared else 0))(theta, batch)
        return returned(value, (len(theta), any_field.shape[1]), "log_lik")
