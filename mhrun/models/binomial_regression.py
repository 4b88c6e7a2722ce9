"""Binomial regression with a logit link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from mhrun.models.dispersion import regression_dispersion_warnings
from mhrun.models.families_native import BINOMIAL
from mhrun.models.jaakkola_jordan import curvature, touching_points
from mhrun.models.linear import Regression, linear_bounds, predictor
from mhrun.models.logistic_bounds import DERIVATIVE_BOUNDS
from mhrun.models.regression_native import Family
from mhrun.native import NativeBounds, NativeLowerBound
from mhrun.types import Bounds, Field, Reference, Rows


class BinomialRegression(Regression):
    """y_i ~ Binomial(t_i, 1 / (1 + exp(-x_i.theta))); theta ~ N(0, prior_variance I), or flat.

    t_i is the number of trials of a datum and y_i how many of them were successes. A datum is thus a group of Bernoulli
    trials with the same features, which `Logistic` reads one by one.

    log p = y eta - t log(1 + exp(eta)) + log C(t, y) with eta = x_i.theta. Its derivatives in eta are bounded: with
    p = 1 / (1 + exp(-eta)),

        |f'| = |y - t p| <= max(y, t - y),  |f''| = t p (1 - p) <= t / 4,  |f'''| <= t / (6 sqrt 3).

    Args:
        dim: D, the number of coefficients; null in a configuration: the number of columns of x.
        prior_variance: prior variance of each; flat if None.
        start_sd: standard deviation of the normal starting points.
        names: of the coefficients, in traces and reports; None: theta[0], theta[1] and so on.

    Raises:
        Refusal: an invalid setting.
    """

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n, D), successes ``y`` (n,) and ``trials`` (n,), which are at least y."""
        return {
            "x": Field((self.dim,), setting="model.dim"),
            "y": Field((), "counts", at_most="trials"),
            "trials": Field((), "counts"),
        }

    def value(self, eta: Tensor, rows: Rows) -> Tensor:
        """Return f(eta), (C, m)."""
        y, trials = rows["y"].double(), rows["trials"].double()
        return y * logsigmoid(eta) + (trials - y) * logsigmoid(-eta) + _log_choose(trials, y)

    def log_lik_size(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the sum of the absolute terms of log p, (C, m): of 10^5 trials each is 10^5 or more, and log p -7."""
        eta = predictor(theta.double(), rows["x"].double())
        y = rows["y"].double()
        trials = rows["trials"].double()
        factorials = torch.lgamma(trials + 1) + torch.lgamma(y + 1) + torch.lgamma(trials - y + 1)
        return y * softplus(-eta) + (trials - y) * softplus(eta) + factorials

    def derivatives(self, eta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the first two derivatives of f in eta, each (C, m)."""
        chance, trials = torch.sigmoid(eta), rows["trials"].double()
        return rows["y"].double() - trials * chance, -trials * chance * (1 - chance)

    def outcome_mean(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the mean t / (1 + exp(-x.theta)) of the successes, (C, m)."""
        return rows["trials"].double() * torch.sigmoid(predictor(theta.double(), rows["x"].double()))

    def fit_warnings(self, draws: Tensor, data: Rows) -> list[str]:
        """Return a line if the successes vary more than binomial ones about the means at the mean of draws (K, D)."""
        return regression_dispersion_warnings(self.outcome_mean, draws, data, trials="trials")

    def simulate(self, theta: Tensor, rows: Rows) -> dict[str, Tensor]:
        """Return new successes ``y`` (n,) for rows with ``x`` (n, D) and ``trials`` (n,), at theta (D,)."""
        chance = torch.sigmoid(rows["x"].double() @ theta.double())
        return {"y": torch.binomial(rows["trials"].double(), chance)}

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the bounds, see `mhrun.types.Bounds`; they hold everywhere."""
        y, trials = data["y"].double(), data["trials"].double()
        derivatives = (torch.maximum(y, trials - y), *(bound * trials for bound in DERIVATIVE_BOUNDS[1:]))
        return linear_bounds(data["x"], derivatives, kind, reference)

    def native_family(self) -> Family:
        """Return the compiled form of f."""
        return BINOMIAL

    def native_known(self, data: Rows) -> Sequence[Tensor]:
        """Return the successes, the trials, and sums of logarithms of factorials, each (n,)."""
        y, trials = data["y"].double(), data["trials"].double()
        choose = _log_choose(trials, y)
        return [y, trials, choose, 2 * torch.lgamma(trials + 1) - choose]

    def native_bounds(self, data: Rows, kind: str, surrogate: Any) -> NativeBounds | None:
        """Return the pieces of the compiled loops on terms with bounds."""
        return self.bounds_in_loops(data, kind, surrogate)

    def native_lower_bound(self, data: Rows, sums: Any, *, tuned: bool) -> NativeLowerBound | None:
        """Return the pieces of the compiled loop of Firefly Monte Carlo."""

        def tangent(rows: Rows, anchor: Tensor | None) -> tuple[Tensor, ...]:
            xi = touching_points(rows["y"].double(), rows["x"].double(), anchor)
            return xi, curvature(xi), logsigmoid(xi)

        return self.lower_bound_in_loops(data, sums, tangent, tuned=tuned)

    def lower_bound(self, theta: Tensor, rows: Rows, anchor: Tensor | None) -> Tensor:
        """Return log B <= log_lik (C, m), quadratic in theta (Jaakkola & Jordan 1997):

            log B = (y - t/2) eta + t (log sigmoid(xi) - xi / 2 - tanh(xi / 2) (eta^2 - xi^2) / (4 xi)) + log C(t, y).

        It touches at |eta| = xi: that of the anchor (D,), or 1.5 without one (Maclaurin & Adams 2015).
        """  # noqa: D415
        x, y, trials = rows["x"].double(), rows["y"].double(), rows["trials"].double()
        eta = predictor(theta.double(), x)
        xi = touching_points(eta, x, anchor)
        of_a_trial = logsigmoid(xi) - xi / 2 - curvature(xi) * (eta - xi) * (eta + xi)
        return (y - trials / 2) * eta + trials * of_a_trial + _log_choose(trials, y)


def _log_choose(trials: Tensor, y: Tensor) -> Tensor:
    return torch.lgamma(trials + 1) - torch.lgamma(y + 1) - torch.lgamma(trials - y + 1)
