"""Linear regression with Student-t errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import StudentT

from mhrun.errors import Refusal
from mhrun.models.families_native import ROBUST
from mhrun.models.linear import Regression, linear_bounds, predictor
from mhrun.models.regression_native import Family
from mhrun.native import NativeBounds, NativeLowerBound
from mhrun.types import Bounds, Reference, Rows

_UNTUNED = 1.0  # |s| at which untuned lower bounds touch: the fewest bright data for errors with nu = 4


class RobustRegression(Regression):
    """y_i = x_i.theta + scale e_i with e_i ~ Student-t(degrees); theta ~ N(0, prior_variance I), or flat.

    With s = (y_i - x_i.theta) / scale and nu = degrees, log p = c - (nu + 1)/2 log(1 + s^2 / nu), where c is the log of
    Gamma((nu + 1)/2) / (Gamma(nu/2) sqrt(pi nu) scale). Its derivatives in eta = x_i.theta are bounded (as in Cornish
    et al. 2019):

        |f'| <= (nu + 1) / (2 sqrt(nu) scale),  |f''| <= (nu + 1) / (nu scale^2),
        |f'''| <= (nu + 1) (3 + 2 sqrt 2) / (4 nu^1.5 scale^3).

    Args:
        dim: D, the number of coefficients; null in a configuration: the number of columns of x.
        degrees: nu, the degrees of freedom.
        scale: scale of the errors.
        prior_variance: prior variance of each coefficient; flat if None.
        start_sd: standard deviation of the normal starting points.
        names: of the coefficients, in traces and reports; None: theta[0], theta[1] and so on.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        dim: int,
        degrees: float = 4.0,
        scale: float = 1.0,
        prior_variance: float | None = None,
        start_sd: float = 0.0,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(dim, prior_variance, start_sd, names)
        if not (degrees > 0 and scale > 0):
            raise Refusal(f"RobustRegression needs degrees > 0 and scale > 0, not {degrees:g} and {scale:g}.")
        self.degrees = float(degrees)
        self.scale = float(scale)
        nu = self.degrees
        self._constant = (
            math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - math.log(math.sqrt(math.pi * nu) * self.scale)
        )

    def value(self, eta: Tensor, rows: Rows) -> Tensor:
        """Return f(eta, y), (C, m)."""
        square = ((rows["y"] - eta) / self.scale).square()
        return self._constant - 0.5 * (self.degrees + 1) * (square / self.degrees).log1p()

    def derivatives(self, eta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the first two derivatives of f in eta, each (C, m)."""
        s = (rows["y"] - eta) / self.scale
        base = self.degrees + s.square()
        factor = (self.degrees + 1) / self.scale
        return factor * s / base, factor / self.scale * (s.square() - self.degrees) / base.square()

    def outcome_mean(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return x.theta, the centre of the outcome's distribution, (C, m): its mean, where degrees > 1."""
        return predictor(theta.double(), rows["x"].double())

    def simulate(self, theta: Tensor, rows: Rows) -> dict[str, Tensor]:
        """Return new outcomes ``y`` (n,) for rows with ``x`` (n, D), at theta (D,)."""
        return {"y": StudentT(self.degrees, rows["x"].double() @ theta.double(), self.scale).sample()}

    @property
    def derivative_bounds(self) -> Sequence[float]:
        """Bounds on |f'|, |f''| and |f'''|."""
        nu, s = self.degrees, self.scale
        first, second = (nu + 1) / (2 * math.sqrt(nu) * s), (nu + 1) / (nu * s**2)
        return first, second, (nu + 1) * (3 + 2 * math.sqrt(2)) / (4 * nu**1.5 * s**3)

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the bounds, see `mhrun.types.Bounds`; they hold everywhere."""
        return linear_bounds(data["x"], self.derivative_bounds, kind, reference)

    def native_family(self) -> Family:
        """Return the compiled form of f."""
        return ROBUST

    def native_settings(self) -> Sequence[float]:
        """Return the degrees of freedom, the scale and the log density at 0."""
        return [self.degrees, self.scale, self._constant]

    def native_bounds(self, data: Rows, kind: str, surrogate: Any) -> NativeBounds | None:
        """Return the pieces of the compiled loops on terms with bounds."""
        return self.bounds_in_loops(data, kind, surrogate)

    def native_lower_bound(self, data: Rows, sums: Any, *, tuned: bool) -> NativeLowerBound | None:
        """Return the pieces of the compiled loop of Firefly Monte Carlo."""
        return self.lower_bound_in_loops(data, sums, self._tangent, tuned=tuned)

    def lower_bound(self, theta: Tensor, rows: Rows, anchor: Tensor | None) -> Tensor:
        """Return log B <= log_lik (C, m), quadratic in theta: the tangent of log_lik in s^2 (Maclaurin & Adams 2015),

            log B = f(s_0) - (nu + 1) (s^2 - s_0^2) / (2 (nu + s_0^2)).

        It touches at |s| = |s_0|: that of the anchor (D,), or 1 without one.
        """  # noqa: D415
        x, y = rows["x"].double(), rows["y"]
        square = ((y - predictor(theta.double(), x)) / self.scale).square()
        anchor_square, tangent = self._tangent(rows, anchor)
        return tangent - 0.5 * (self.degrees + 1) * (square - anchor_square) / (self.degrees + anchor_square)

    def _tangent(self, rows: Rows, anchor: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return s_0^2, where lower bounds touch, and f there, each (..., m)."""
        y = rows["y"].double()
        if anchor is None:
            square = torch.full_like(y, _UNTUNED**2)
        else:
            square = ((y - rows["x"].double() @ anchor) / self.scale).square()
        return square, self._constant - 0.5 * (self.degrees + 1) * (square / self.degrees).log1p()
