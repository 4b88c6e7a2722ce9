"""Poisson regression with a log link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhrun.errors import Refusal, nearest
from mhrun.models.bounds import Distances, order_of, over_parts, remainder_slope, remainder_width, row_norms
from mhrun.models.dispersion import regression_dispersion_warnings
from mhrun.models.families_native import POISSON
from mhrun.models.linear import Regression, predictor
from mhrun.models.regression_native import Family
from mhrun.native import NativeBounds
from mhrun.types import Bounds, Field, Reference, Rows


class PoissonRegression(Regression):
    """y_i ~ Poisson(e_i exp(x_i.theta)); theta ~ N(0, prior_variance I), or flat.

    e_i is the exposure of a datum, such as its time of observation: the field ``exposure`` of the data, or 1.

    log p = y eta - exp(eta) - log y! with eta = x_i.theta + log e_i. Its derivatives in eta are unbounded. The bounds
    hold everywhere all the same: with mu_i = e_i exp(x_i.reference), |v_i| <= max_j |x_j| = w and R the larger distance
    of theta and theta' from the reference (0 if there is none), exp(eta) <= mu_i exp(w R) on the segment between theta
    and theta', so that

        |f'| <= max(y_i, mu_i) exp(w R),  |f''| <= mu_i exp(w R),  |f'''| <= mu_i exp(w R)

    there. They are tight near the reference and grow exponentially with the distance; a method that finds them too
    large reads all data in that step.

    Args:
        dim: D, the number of coefficients.
        prior_variance: prior variance of each; flat if None.
        start_sd: standard deviation of the normal starting points.
        names: of the coefficients, in traces and reports; None: theta[0], theta[1] and so on.

    Raises:
        Refusal: an invalid setting.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n, D) and counts ``y`` (n,)."""
        return {"x": Field((self.dim,), setting="model.dim"), "y": Field((), "counts")}

    def fields_of(self, data: Rows) -> Mapping[str, Field]:
        """Return `fields`, and the requirement on ``exposure`` (n,) if the data have it.

        Raises:
            Refusal: a field that may be a misspelt exposure.
        """
        for name in data:
            if name not in ("x", "y", "exposure") and (
                "offset" in name or nearest(name, ["exposure"]) or name.startswith("log_exp")
            ):
                raise Refusal(
                    f"PoissonRegression does not read the field {name}; call it exposure, and take the exponential of "
                    "a logarithm, or leave it out."
                )
        return {**self.fields, **({"exposure": Field((), "positive")} if "exposure" in data else {})}

    def offset(self, rows: Rows) -> Tensor | float:
        """Return the log of the exposure (C or 1, m), 0 without one."""
        return rows["exposure"].double().log() if "exposure" in rows else 0.0

    def value(self, eta: Tensor, rows: Rows) -> Tensor:
        """Return f(eta, y), (C, m)."""
        y = rows["y"]
        return y * eta - eta.exp() - torch.lgamma(y.double() + 1.0)

    def log_lik_size(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return y |eta| + exp(eta) + log y!, (C, m): of counts of 10^5 each is 10^5 or more, and log p about -7."""
        eta, y = predictor(theta.double(), rows["x"].double()) + self.offset(rows), rows["y"].double()
        return y * eta.abs() + eta.exp() + torch.lgamma(y + 1.0)

    def derivatives(self, eta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the first two derivatives of f in eta, each (C, m)."""
        mean = eta.exp()
        return rows["y"] - mean, -mean

    def outcome_mean(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the mean e exp(x.theta), (C, m)."""
        return (predictor(theta.double(), rows["x"].double()) + self.offset(rows)).exp()

    def fit_warnings(self, draws: Tensor, data: Rows) -> list[str]:
        """Return a line if the counts vary more than Poisson counts about the means at the mean of draws (K, D)."""
        return regression_dispersion_warnings(self.outcome_mean, draws, data)

    def simulate(self, theta: Tensor, rows: Rows) -> dict[str, Tensor]:
        """Return new counts ``y`` (n,) for rows with ``x`` (n, D), at theta (D,)."""
        return {"y": torch.poisson((rows["x"].double() @ theta.double() + self.offset(rows)).exp())}

    def native_family(self) -> Family:
        """Return the compiled form of f."""
        return POISSON

    def native_known(self, data: Rows) -> Sequence[Tensor]:
        """Return the counts, the logarithm of the exposure and that of y!, each (n,)."""
        y = data["y"].double()
        offset = data["exposure"].double().log() if "exposure" in data else torch.zeros_like(y)
        return [y, offset, torch.lgamma(y + 1.0)]

    def native_bounds(self, data: Rows, kind: str, surrogate: Any) -> NativeBounds | None:
        """Return the pieces of the compiled loops on terms with bounds."""
        return self.bounds_in_loops(data, kind, surrogate, stretches=True)

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the bounds, see `mhrun.types.Bounds`; they hold everywhere."""
        order, norms = order_of(kind), row_norms(data["x"], reference)
        if reference is None:
            means = data["exposure"].double() if "exposure" in data else torch.ones_like(norms)
        else:
            theta = reference.theta
            means = over_parts(lambda rows: (rows["x"].double() @ theta + self.offset(rows)).exp(), data)
        largest = torch.maximum(data["y"].double(), means) if order == 0 else means
        distances, widest = Distances(reference), norms.max()
        plain, steep = remainder_width(order, distances), remainder_slope(order, distances)

        def width(theta: Tensor, to: Tensor) -> Tensor:
            _, a, b = distances(theta, to)
            return plain(theta, to) * (widest * torch.maximum(a, b)).exp()

        def slope(theta: Tensor) -> Tensor:
            assert steep is not None
            _, a, _ = distances(theta, theta)
            return steep(theta) * (widest * a).exp()

        return Bounds(norms ** (order + 1) * largest, width, None if steep is None else slope)
