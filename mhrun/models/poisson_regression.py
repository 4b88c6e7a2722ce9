"""Poisson regression with a log link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mhrun.models.bounds import Distances, order_of, over_parts, remainder_slope, remainder_width, row_norms
from mhrun.models.linear import Regression, predictor
from mhrun.types import Bounds, Field, Reference, Rows


class PoissonRegression(Regression):
    """y_i ~ Poisson(exp(x_i.theta)); theta ~ N(0, prior_variance I), or flat.

    log p = y eta - exp(eta) - log y!. Its derivatives in eta = x_i.theta are unbounded. The bounds hold everywhere all
    the same: with mu_i = exp(x_i.reference), |v_i| <= max_j |x_j| = w and R the larger distance of theta and theta'
    from the reference (0 if there is none), exp(eta) <= mu_i exp(w R) on the segment between theta and theta', so that

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

    def __init__(
        self,
        dim: int,
        prior_variance: float | None = None,
        start_sd: float = 0.0,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(dim, prior_variance, start_sd, names)

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n, D) and counts ``y`` (n,)."""
        return {"x": Field((self.dim,), setting="model.dim"), "y": Field((), "counts")}

    def value(self, eta: Tensor, y: Tensor) -> Tensor:
        """Return f(eta, y), (C, m)."""
        return y * eta - eta.exp() - torch.lgamma(y + 1.0)

    def slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first two derivatives of f in eta, each (C, m)."""
        mean = eta.exp()
        return y - mean, -mean

    def outcome_mean(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the rate exp(x.theta), (C, m)."""
        return predictor(theta.double(), rows["x"].double()).exp()

    def simulate(self, theta: Tensor, rows: Rows) -> dict[str, Tensor]:
        """Return new counts ``y`` (n,) for rows with ``x`` (n, D), at theta (D,)."""
        return {"y": torch.poisson((rows["x"].double() @ theta).exp())}

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the bounds, see `mhrun.types.Bounds`; they hold everywhere."""
        order, norms = order_of(kind), row_norms(data["x"], reference)
        if reference is None:
            means = torch.ones_like(norms)
        else:
            theta = reference.theta
            means = over_parts(lambda rows: predictor(theta[None], rows["x"].double()[None])[0].exp(), data)
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
