"""Ten small posteriors, as users write them: the arguments of `mhrun.sample`, with nothing else given.

The data are drawn here with fixed seeds. The reference means and standard deviations are in tests/posteriors.json; see
reference_posteriors.py for their sources.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributions import Categorical, Dirichlet, HalfCauchy, HalfNormal, Normal, Poisson, StudentT
from torch.nn.functional import logsigmoid

ROWS_OF_NETWORK, HIDDEN = 60, 3


class Posterior(NamedTuple):
    """A model on its data."""

    model: Callable[..., Any] | torch.nn.Module
    data: dict[str, np.ndarray[Any, Any]]
    parameters: dict[str, Any] | None = None
    log_prior: Callable[..., Any] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The further arguments of `mhrun.sample`."""
        given = {"parameters": self.parameters, "log_prior": self.log_prior}
        return {name: value for name, value in given.items() if value is not None}


def normal() -> Posterior:
    """Mean and scale of a normal sample."""
    y = np.random.default_rng(1).normal(3.0, 2.0, 30)
    return Posterior(
        lambda theta, rows: Normal(theta.mu, theta.sigma).log_prob(rows.y),
        {"y": y},
        {"mu": "Normal(0, 5)", "sigma": "HalfNormal(5)"},
    )


def linear() -> Posterior:
    """Linear regression on correlated features of different scales."""
    rng = np.random.default_rng(2)
    common = rng.normal(size=(100, 1))
    x = (0.8 * common + 0.6 * rng.normal(size=(100, 4))) * np.array([0.1, 1.0, 3.0, 10.0])
    y = 1.5 + x @ np.array([2.0, -1.0, 0.5, 0.1]) + 0.7 * rng.normal(size=100)
    return Posterior(
        lambda theta, rows: Normal(theta.intercept + rows.x @ theta.slopes, theta.sigma).log_prob(rows.y),
        {"x": x, "y": y},
        {
            "intercept": "Normal(0, 5)",
            "slopes": {"shape": 4, "prior": "Normal(0, 5)"},
            "sigma": "HalfNormal(2)",
        },
    )


def robust() -> Posterior:
    """Regression with errors of Student's t distribution, and five outliers."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(80, 3))
    y = 0.5 + x @ np.array([1.0, -2.0, 0.3]) + 0.5 * rng.standard_t(4, 80)
    y[:5] += 15.0
    return Posterior(
        lambda theta, rows: StudentT(4.0, theta.intercept + rows.x @ theta.slopes, theta.sigma).log_prob(
            rows.y
        ),
        {"x": x, "y": y},
        {
            "intercept": "Normal(0, 2)",
            "slopes": {"shape": 3, "prior": "Normal(0, 2)"},
            "sigma": "HalfNormal(1)",
        },
    )


def logistic() -> Posterior:
    """Logistic regression with few data for its parameters."""
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(60), rng.normal(size=(60, 4))])
    p = 1 / (1 + np.exp(-x @ np.array([0.5, 2.0, -1.5, 0.8, 0.0])))
    y = np.where(rng.random(60) < p, 1.0, -1.0)
    return Posterior(
        lambda theta, rows: logsigmoid(rows.y * (rows.x @ theta.weights)),
        {"x": x, "y": y},
        {"weights": {"shape": 5, "prior": "Normal(0, 3)"}},
    )


def poisson() -> Posterior:
    """Poisson regression with a log link."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(120, 3))
    y = rng.poisson(np.exp(0.3 + x @ np.array([0.8, -0.4, 0.2]))).astype(np.float64)
    return Posterior(
        lambda theta, rows: Poisson((theta.intercept + rows.x @ theta.slopes).exp()).log_prob(rows.y),
        {"x": x, "y": y},
        {"intercept": "Normal(0, 2)", "slopes": {"shape": 3, "prior": "Normal(0, 2)"}},
    )


def hierarchical() -> Posterior:
    """Eight schools (Rubin 1981), with the effects as parameters: a funnel."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sd = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def log_lik(theta: Any, rows: Any) -> torch.Tensor:
        return Normal(theta.effects[rows.school.long()], rows.sd).log_prob(rows.y)

    def log_prior(theta: Any) -> torch.Tensor:
        return Normal(theta.mu, theta.tau).log_prob(theta.effects).sum()

    return Posterior(
        log_lik,
        {"y": y, "sd": sd, "school": np.arange(8)},
        {"mu": Normal(0.0, 5.0), "tau": HalfCauchy(5.0), "effects": 8},
        log_prior,
    )


def mixture() -> Posterior:
    """A mixture of two normal distributions: weight, ordered means and scale."""
    rng = np.random.default_rng(7)
    y = np.where(rng.random(150) < 0.35, rng.normal(-1.0, 0.8, 150), rng.normal(1.8, 0.8, 150))

    def log_lik(theta: Any, rows: Any) -> torch.Tensor:
        each = Normal(theta.means, theta.sigma).log_prob(rows.y[:, None])
        logs = torch.stack([theta.weight.log(), torch.log1p(-theta.weight)])
        return (each + logs).logsumexp(-1)

    return Posterior(
        log_lik,
        {"y": y},
        {
            "weight": "Beta(2, 2)",
            "means": {"shape": 2, "prior": "Normal(0, 3)", "constraint": "ordered"},
            "sigma": HalfNormal(2.0),
        },
    )


def ordered() -> Posterior:
    """Ordinal regression: a slope and three cut points."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=120)
    y = np.digitize(1.2 * x + rng.logistic(size=120), [-1.5, 0.5, 2.5]).astype(np.float64)

    def log_lik(theta: Any, rows: Any) -> torch.Tensor:
        below = torch.sigmoid(theta.cuts - theta.slope * rows.x[:, None])
        edge = torch.zeros_like(below[:, :1])
        p = torch.cat([below, edge + 1], -1) - torch.cat([edge, below], -1)
        return p.gather(-1, rows.y.long()[:, None])[:, 0].clamp_min(1e-300).log()

    return Posterior(
        log_lik,
        {"x": x, "y": y},
        {"slope": "Normal(0, 3)", "cuts": {"shape": 3, "prior": "Normal(0, 3)", "constraint": "ordered"}},
    )


def simplex() -> Posterior:
    """Probabilities of five classes, one of which is never seen."""
    y = np.repeat(np.arange(5), [12, 7, 3, 1, 0])
    return Posterior(
        lambda theta, rows: Categorical(theta.weights).log_prob(rows.y),
        {"y": y},
        {"weights": Dirichlet(torch.ones(5, dtype=torch.float64))},
    )


class Network(torch.nn.Module):
    """A hidden layer of three tanh units, for two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(2, HIDDEN), torch.nn.Linear(HIDDEN, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.two(torch.tanh(self.one(x)))


def network() -> Posterior:
    """A small network: its hidden units can be exchanged, and the signs of each, which no chain does."""
    import mhrun

    rng = np.random.default_rng(10)
    x = rng.normal(size=(ROWS_OF_NETWORK, 2))
    y = (x[:, 0] * x[:, 1] + 0.3 * rng.normal(size=ROWS_OF_NETWORK) > 0).astype(np.int64)
    return Posterior(mhrun.ModuleModel(Network().double(), prior_variance=1.0), {"x": x, "y": y})


POSTERIORS = {
    made.__name__: made
    for made in (normal, linear, robust, logistic, poisson, hierarchical, mixture, ordered, simplex, network)
}
