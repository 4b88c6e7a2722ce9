"""Terms of a log-ratio with a bound for each datum."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.data import Dataset
from mhrun.errors import UserError
from mhrun.native import NativeBounds, available, native_form
from mhrun.native.alias import alias_table
from mhrun.target.all_data import AllData
from mhrun.target.first_point import first_point
from mhrun.target.surrogate import Surrogate
from mhrun.types import BOUND_KINDS, Bounds, Model
from mhrun.types.capabilities import HasBounds, bound_kinds_of, offers

CONSTANTS = dict(zip(BOUND_KINDS, ("lipschitz", "curvature", "third"), strict=True))
"""The settings of `mhrun.UserFunction` that bound its terms, by kind."""

_CHECKED = 1000  # bounds of 0 that are compared with terms


class AliasTable(NamedTuple):
    """Draws of data in proportion to weights, see `mhrun.native.alias`."""

    cut: Tensor  # (n,)
    other: Tensor  # (n,)
    total: Tensor  # () sum of the weights


class BoundedTerms:
    """The terms log p(x | candidate) - log p(x | origin), or those of a surrogate's remainders, and bounds on them.

    Args:
        model: provides the bounds, see `mhrun.types.Model`.
        read: returns the data; called on first use.
        all_data: evaluates the terms.
        surrogate: of the target, or None.
        native: whether a compiled CPU loop can use them.
    """

    def __init__(
        self,
        model: Model,
        read: Callable[[], Dataset],
        all_data: AllData,
        surrogate: Surrogate | None,
        *,
        native: bool,
    ) -> None:
        self._model = model
        self._read = read
        self._all = all_data
        self._surrogate = surrogate
        self._native = native

    @property
    def kind(self) -> str | None:
        """The kind of the bounds that the terms need, one of `mhrun.types.BOUND_KINDS`; None if no model has them."""
        return BOUND_KINDS[0] if self._surrogate is None else self._surrogate.kind

    def refuses(self) -> str | None:
        """Return why the terms have no bounds, or None."""
        kinds = bound_kinds_of(self._model)
        if self.kind in kinds and native_form(self._model, "bounds", "log_lik") is not None:
            return None
        name = type(self._model).__name__
        if not kinds:
            constant = CONSTANTS.get(str(self.kind), "lipschitz")
            return (
                f"the terms need bounds, and {name} has none; a function of yours can give some: {constant}= of "
                "mhrun.FunctionModel, or in its YAML."
            )
        choices = ["none" if kind == BOUND_KINDS[0] else kind for kind in kinds]
        remedy = f"choose surrogate={' or '.join(choices)} (target.surrogate in a configuration)."
        if self.kind is None:
            return f"lower bounds have no bounds on their remainders; {remedy}"
        choice = "none" if self.kind == BOUND_KINDS[0] else self.kind
        return f"{name} has no bounds for surrogate={choice}; {remedy}"

    @cached_property
    def bounds(self) -> Bounds:
        """The model's bounds.

        Raises:
            UserError: a bound of 0 does not hold.
        """
        assert offers(self._model, HasBounds)
        assert self.kind is not None
        reference = None if self._surrogate is None else self._surrogate.reference
        bounds = self._model.bounds(self._read().fields, self.kind, reference)
        self._check_zeros(bounds.weights)
        return bounds

    def _check_zeros(self, weights: Tensor) -> None:
        """Compare bounds of 0 with terms between two points: a datum with such a bound is never read by a chain."""
        never = (weights == 0).nonzero()[:_CHECKED, 0]
        if not len(never):
            return
        theta = first_point(self._model, weights.device)
        term, rounding = self.terms(theta, theta + 1.0, never[None])
        if bool((wrong := term.abs()[0] > rounding[0]).any()):
            i = int(never[wrong][0])
            raise UserError(
                f"the bound of datum {i} is 0, and its term is {float(term[0][wrong][0]):.3g} between two points; give "
                "a bound that holds everywhere."
            )

    @cached_property
    def table(self) -> AliasTable:
        """The alias table of the weights of the bounds."""
        weights = self.bounds.weights
        cut, other = (torch.from_numpy(a).to(weights.device) for a in alias_table(weights.cpu().numpy()))
        return AliasTable(cut, other, weights.sum())

    def forget(self) -> None:
        """Drop the bounds and their table: the surrogate has another reference now."""
        self.__dict__.pop("bounds", None)
        self.__dict__.pop("table", None)

    def terms(self, origin: Tensor, candidate: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the terms of `index` (R, k), computed in float64, and what rounding may add to them, each (R, k)."""
        return self._all.rounded_terms(origin.double(), candidate.double(), self._read().rows(index))

    def native(self) -> NativeBounds | None:
        """Return the model's pieces for a compiled CPU loop on bounded terms, or None."""
        offered = native_form(self._model, "native_bounds", "log_prior", "log_lik", "bounds")
        if offered is None or not self._native or not available():
            return None
        sums = None if self._surrogate is None else self._surrogate.sums
        pieces: NativeBounds | None = offered(self._read().fields, self.kind, sums)
        return pieces
