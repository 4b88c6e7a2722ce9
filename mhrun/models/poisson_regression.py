"""Poisson regression with a log link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from mhrun.errors import Refusal, nearest
from mhrun.models.bounds import Distances, order_of, over_parts, remainder_slope, remainder_width, row_norms
from mhrun.models.linear import Regression, predictor
from mhrun.types import Bounds, Field, Reference, Rows

_DISPERSION = (
    1.5  # variance over mean from which counts are named; intervals are then a fifth too narrow or more
)
_ROWS = 100_000  # evenly spaced, from which it is computed


def dispersion_warnings(y: Tensor, mean: Tensor, parameters: int) -> Iterator[str]:
    """Yield a line on counts whose variance is clearly above the mean, by Pearson's statistic.

    chi^2 / (n - D) has mean 1 for Poisson counts, and variance (2 + mean of 1 / mean_i) / (n - D).

    Args:
        y: counts (n,).
        mean: fitted means (n,).
        parameters: D, the number of fitted ones.
    """
    free = len(y) - parameters
    if free < 1:
        return
    dispersion = float(((y - mean) ** 2 / mean).sum() / free)
    spread = float(((2 + 1 / mean).mean() / free) ** 0.5)
    if dispersion > max(_DISPERSION, 1 + 5 * spread):
        yield (
            f"the counts' variance is about {dispersion:.2g} times their mean: intervals of a Poisson regression are "
            f"about {dispersion**0.5:.2g} times too narrow; a negative binomial is in docs/questions.md"
        )


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

    def value(self, eta: Tensor, y: Tensor) -> Tensor:
        """Return f(eta, y), (C, m)."""
        return y * eta - eta.exp() - torch.lgamma(y.double() + 1.0)

    def log_lik_size(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return y |eta| + exp(eta) + log y!, (C, m): of counts of 10^5 each is 10^5 or more, and log p about -7."""
        eta, y = predictor(theta.double(), rows["x"].double()) + self.offset(rows), rows["y"].double()
        return y * eta.abs() + eta.exp() + torch.lgamma(y + 1.0)

    def slopes(self, eta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first two derivatives of f in eta, each (C, m)."""
        mean = eta.exp()
        return y - mean, -mean

    def outcome_mean(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the mean e exp(x.theta), (C, m)."""
        return (predictor(theta.double(), rows["x"].double()) + self.offset(rows)).exp()

    def fit_warnings(self, theta: Tensor, data: Rows) -> list[str]:
        """Return a line if the counts vary more about the means at theta (D,) than Poisson counts."""
        stride = -(-len(data["y"]) // _ROWS)
        rows = {name: field[::stride][None] for name, field in data.items()}
        mean = self.outcome_mean(theta[None], rows)[0]
        return list(dispersion_warnings(rows["y"][0].double(), mean, self.dim))

    def simulate(self, theta: Tensor, rows: Rows) -> dict[str, Tensor]:
        """Return new counts ``y`` (n,) for rows with ``x`` (n, D), at theta (D,)."""
        return {"y": torch.poisson((rows["x"].double() @ theta.double() + self.offset(rows)).exp())}

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
