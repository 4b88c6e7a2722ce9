"""Regressions: log-likelihoods f(eta_i, y_i) of a linear predictor eta_i = x_i.theta, with a normal or flat prior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from mhrun.array_types import Float64Array
from mhrun.errors import Refusal
from mhrun.models.autograd import log_lik_and_grad
from mhrun.models.bounds import Distances, order_of, over_parts, remainder_slope, remainder_width, row_norms
from mhrun.models.naming import named
from mhrun.models.regression_native import (
    Family,
    RegressionArrays,
    native_bounds,
    native_lower_bound,
    native_model,
)
from mhrun.models.weights import Weights, checked_start_sd, precision_of
from mhrun.native import NativeBounds, NativeLowerBound, NativeModel, native_form
from mhrun.ownership import is_bundled
from mhrun.types import BOUND_KINDS, Bounds, Field, Reference, Rows

_COPIED = 1 << 26  # data of which numbers in float64 are made for compiled loops, at most: some GB
NARROW = (torch.float16, torch.bfloat16)  # which compiled loops do not read


def fits_loops(data: Rows) -> bool:
    """Return whether compiled loops can read data: not of 16 bits, and not so many that copies would fill memory."""
    return data["x"].dtype not in NARROW and len(data["y"]) <= _COPIED


def predictor(theta: Tensor, x: Tensor) -> Tensor:
    """Return x.theta (C, m) of theta (C, D) and x (C or 1, m, D)."""
    if len(x) == 1:
        return theta @ x[0].T
    return torch.bmm(x.expand(len(theta), -1, -1), theta[:, :, None])[..., 0]


def weighted_sum(factors: Tensor, x: Tensor) -> Tensor:
    """Return the sum of factors_i x_i over the data (C, D) of factors (C, m) and x (C or 1, m, D)."""
    if len(x) == 1:
        return factors @ x[0]
    return torch.bmm(factors[:, None], x.expand(len(factors), -1, -1))[:, 0]


def linear_bounds(
    x: Tensor,
    derivatives: Sequence[float | Tensor],
    kind: str,
    reference: Reference | None,
    scale: float = 1.0,
) -> Bounds:
    """Return the bounds of f(x_i.theta, y_i) from bounds on |f'|, |f''| and |f'''|, each a number or (n,)."""
    order = order_of(kind)
    weights = row_norms(x, reference, scale) ** (order + 1) * derivatives[order]
    distances = Distances(reference)
    return Bounds(weights, remainder_width(order, distances), remainder_slope(order, distances))


class Regression(Weights, ABC):
    """A regression without an intercept; give x a constant column to have one.

    Fields: ``x`` (n, D), real, and ``y`` (n,). Computed in float64.

    Args:
        dim: D, the number of coefficients; null in a configuration: the number of columns of x.
        prior_variance: prior variance of each; flat if None.
        start_sd: standard deviation of the normal starting points.
        names: of the coefficients, in traces and reports; None: theta[0], theta[1] and so on.

    Raises:
        Refusal: an invalid setting.
    """

    bound_kinds: Sequence[str] = BOUND_KINDS

    def __init__(
        self,
        dim: int,
        prior_variance: float | None = None,
        start_sd: float = 0.0,
        names: Sequence[str] | None = None,
    ) -> None:
        if dim < 1:
            raise Refusal(f"dim = {dim} is not a valid number of coefficients; choose dim >= 1.")
        self.dim = dim
        self.names: Sequence[str] = named(names, dim)
        self.precision = precision_of(prior_variance, self)
        self.start_sd = checked_start_sd(start_sd, self)

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n, D) and ``y`` (n,)."""
        return {"x": Field((self.dim,), setting="model.dim"), "y": Field(())}

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D), x (C or 1, m, D) and y (C or 1, m) -> (C, m)."""
        return self.value(predictor(theta.double(), rows["x"].double()) + self.offset(rows), rows)

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m), and the gradient (C, D) of their mean: that of f'_i x_i.

        A subclass of the user has the gradient of automatic differentiation: its `derivatives` may be wrong.
        """
        if not is_bundled(self):
            return log_lik_and_grad(lambda point: self.log_lik(point, rows), theta)
        x = rows["x"].double()
        eta = predictor(theta.double(), x) + self.offset(rows)
        grad = weighted_sum(self.derivatives(eta, rows)[0], x) / x.shape[1]
        return self.value(eta, rows), grad.to(theta)

    def offset(self, rows: Rows) -> Tensor | float:
        """Return the known part of eta (C or 1, m), which has no coefficient; 0 here."""
        return 0.0

    def taylor(self, theta: Tensor, reference: Tensor, rows: Rows, order: int) -> Tensor:
        """Return the Taylor polynomial of log_lik about the reference, without its constant, (C, m)."""
        x = rows["x"].double()
        step = predictor(theta.double() - reference, x)
        first, second = self.derivatives(x @ reference + self.offset(rows), rows)
        return first * step if order == 1 else (first + 0.5 * second * step) * step

    def multiplies_chains(self, data: Rows) -> bool:
        """Return True: all data are multiplied with the coefficients of all chains at once."""
        return True

    def native(self, data: Rows, *, full: bool) -> NativeModel | None:
        """Return the pieces of the compiled loops; None without any."""
        family = self.family_in_loops(data)
        return None if family is None else native_model(family, self.arrays_in_loops(data), full=full)

    def native_family(self) -> Family | None:
        """Return the compiled form of f; None if there is none."""
        return None

    def native_known(self, data: Rows) -> Sequence[Tensor]:
        """Return the numbers of each datum that the compiled form reads, each (n,)."""
        return [data["y"]]

    def native_settings(self) -> Sequence[float]:
        """Return the numbers of the model that the compiled form reads."""
        return []

    def family_in_loops(self, data: Rows) -> Family | None:
        """Return the compiled form of f; None if a subclass changes f, or loops cannot read the data."""
        if not fits_loops(data):
            return None
        offered = native_form(self, "native_family", "log_lik", "value", "derivatives", "offset", "taylor")
        return None if offered is None else cast(Family | None, offered())

    def arrays_in_loops(self, data: Rows) -> RegressionArrays:
        """Return the data and settings as compiled loops read them."""
        known = torch.stack([field.double() for field in self.native_known(data)], -1).numpy()
        settings = np.array(self.native_settings(), np.float64)
        return RegressionArrays(data["x"].numpy(), known, settings, self.precision)

    def bounds_in_loops(
        self, data: Rows, kind: str, surrogate: Any, *, stretches: bool = False
    ) -> NativeBounds | None:
        """Return the pieces of the compiled loops on terms with bounds; None if the family has none."""
        family = self.family_in_loops(data)
        if family is None:
            return None
        reference = None if surrogate is None else surrogate.reference
        widest = float(row_norms(data["x"], reference).max()) if stretches else 0.0
        expansion = np.zeros((1, 3)) if reference is None else self._expansion(data, reference.theta)
        return native_bounds(family, self.arrays_in_loops(data), order_of(kind), widest, surrogate, expansion)

    def lower_bound_in_loops(
        self,
        data: Rows,
        sums: Any,
        tangent: Callable[[Rows, Tensor | None], tuple[Tensor, ...]],
        *,
        tuned: bool,
    ) -> NativeLowerBound | None:
        """Return the pieces of the compiled loop of Firefly Monte Carlo; None without a compiled form of f.

        Args:
            data: all of it, fields (n, ...).
            sums: the `Sums` of all bounds.
            tangent: (rows (m, ...), anchor (D,) or None) -> the numbers of the bounds that loops read, each (m,).
            tuned: whether the bounds touch at the reference of the sums, their anchor.
        """
        if (family := self.family_in_loops(data)) is None:
            return None
        anchor = sums.reference.theta if tuned else None
        numbers = over_parts(lambda rows: torch.stack(tangent(rows, anchor), -1), data).numpy()
        return native_lower_bound(family, self.arrays_in_loops(data), numbers, sums)

    def _expansion(self, data: Rows, theta: Tensor) -> Float64Array:
        """Return x_i.theta and the first two derivatives of f_i there, (n, 3)."""

        def column(k: int) -> Tensor:
            def of_rows(rows: Rows) -> Tensor:
                eta = rows["x"].double() @ theta
                return eta if k == 0 else self.derivatives(eta + self.offset(rows), rows)[k - 1]

            return over_parts(of_rows, data)

        return torch.stack([column(k) for k in range(3)], -1).numpy()

    @abstractmethod
    def value(self, eta: Tensor, rows: Rows) -> Tensor:
        """Return f_i(eta_i) of the data `rows`, (C, m)."""

    @abstractmethod
    def derivatives(self, eta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the first two derivatives of f in eta, each (C, m)."""

    @abstractmethod
    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the bounds, see `Bounds`."""
