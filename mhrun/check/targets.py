"""Small targets with known distributions: in closed form, or by quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import special
from torch import Tensor

from mhrun.array_types import FloatArray
from mhrun.check.models import BoundedFunction, BoundedMean, gaussian_gap, location_bounds
from mhrun.data import Dataset
from mhrun.models.bounds import constant_bounds
from mhrun.models.function import FunctionModel
from mhrun.models.logistic import Logistic
from mhrun.target import Target
from mhrun.types import Bounds, Model, Reference, Rows


class Known(NamedTuple):
    """A target and its distribution at any temperatures T (C,)."""

    name: str
    model: Model
    data: Dataset
    draw: Callable[[np.random.Generator, FloatArray], FloatArray]  # T (C,) -> draws (C, D)
    # draws (C, D) and T (C,) -> (C, k), uniform under the target
    uniforms: Callable[[FloatArray, FloatArray], FloatArray]
    centre: FloatArray  # (D,) mean at T = 1
    scale: float  # a standard deviation at T = 1, of a mode where there are two
    covariance: FloatArray | None = None  # (D, D) at T = 1, of a target in several dimensions
    temper: str = "posterior"  # what the temperature applies to, see `mhrun.target.Target`

    @property
    def n(self) -> int:
        """The number of data."""
        return self.data.n

    @property
    def sds(self) -> FloatArray:
        """The standard deviation of each coordinate at T = 1, (D,); the scale of all where they are alike."""
        if self.covariance is None:
            return np.full(self.model.dim, self.scale)
        sds: FloatArray = np.sqrt(np.diag(self.covariance))
        return sds

    def target(self, surrogate: str = "none") -> Target:
        """Return the target, without cached values."""
        return Target(self.model, self.data, surrogate=surrogate, temper=self.temper)


def gaussian_mean(n: int) -> Known:
    """The mean of n draws from N(theta, 1): a normal posterior. Its model has compiled pieces."""
    x = np.random.default_rng(11).normal(0.7, 1.0, n)
    precision = n + 1.0  # the prior's is 1
    mean, sd = x.sum() / precision, precision**-0.5

    def uniforms(theta: FloatArray, temperature: FloatArray) -> FloatArray:
        return np.asarray(special.ndtr((theta - mean) / (sd * temperature**0.5)[:, None]))

    return Known(
        f"Gaussian mean, n = {n:,}",
        BoundedMean(prior_variance=1.0),
        Dataset.of(x),
        lambda rng, t: mean + sd * (t**0.5 * rng.standard_normal(len(t)))[:, None],
        uniforms,
        centre=np.array([mean]),
        scale=sd,
    )


def tempered_likelihood(n: int) -> Known:
    """As `gaussian_mean`, where the temperature applies to the likelihood alone: with few data the prior shows."""
    x = np.random.default_rng(11).normal(0.7, 1.0, n)

    def moments(temperature: FloatArray) -> tuple[FloatArray, FloatArray]:
        precision = n / temperature + 1.0
        return x.sum() / temperature / precision, precision**-0.5

    def draw(rng: np.random.Generator, t: FloatArray) -> FloatArray:
        mean, sd = moments(t)
        return (mean + sd * rng.standard_normal(len(t)))[:, None]

    def uniforms(theta: FloatArray, temperature: FloatArray) -> FloatArray:
        mean, sd = moments(temperature)
        return np.asarray(special.ndtr((theta - mean[:, None]) / sd[:, None]))

    mean, sd = moments(np.ones(1))
    return Known(
        f"Gaussian mean, n = {n:,}, temper = likelihood",
        BoundedMean(1.0),
        Dataset.of(x),
        draw,
        uniforms,
        centre=mean,
        scale=float(sd[0]),
        temper="likelihood",
    )


def mixture() -> Known:
    """A mixture with components at +theta and -theta, 12 data and a prior off zero: two unequal modes."""
    x = np.random.default_rng(5).normal(0.0, 1.0, 12) + 1.4 * np.resize([1.0, -1.0], 12)

    def log_lik(theta: Tensor, rows: Rows) -> Tensor:
        near, far = -0.5 * (rows["x"] - theta) ** 2, -0.5 * (rows["x"] + theta) ** 2
        return torch.logaddexp(near, far)

    def log_prior(theta: Tensor) -> Tensor:
        return -0.5 * (theta[:, 0] - 0.4) ** 2

    def lower_bound(theta: Tensor, rows: Rows, anchor: Tensor | None) -> Tensor:
        """Equal weights of the components, by Jensen's inequality."""
        return math.log(2) - 0.5 * (rows["x"].square() + theta.square())

    model = BoundedFunction(log_lik, [0.0], log_prior, bounds=location_bounds, lower_bound=lower_bound)
    grid = np.linspace(-9.0, 9.0, 9001)
    at = torch.from_numpy(grid)[:, None]
    log_density = (log_lik(at, {"x": torch.from_numpy(x)[None]}).sum(1) + log_prior(at)).numpy()
    mode = np.where(grid > 0, np.exp(log_density - log_density.max()), 0.0)
    scale = float(np.cov(grid, aweights=mode)) ** 0.5
    distributions: dict[float, FloatArray] = {}

    def cdf_at(temperature: float) -> FloatArray:
        if temperature not in distributions:
            density = np.exp((log_density - log_density.max()) / temperature)
            mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
            distributions[temperature] = mass / mass[-1]
        return distributions[temperature]

    def by_temperature(
        function: Callable[[FloatArray, FloatArray], FloatArray], values: FloatArray, temperature: FloatArray
    ) -> FloatArray:
        mapped = np.empty_like(values)
        for t in np.unique(temperature):
            mapped[temperature == t] = function(values[temperature == t], cdf_at(float(t)))
        return mapped

    def draw(rng: np.random.Generator, temperature: FloatArray) -> FloatArray:
        def quantile(u: FloatArray, cdf: FloatArray) -> FloatArray:
            return np.interp(u, cdf, grid)

        return by_temperature(quantile, rng.random(len(temperature)), temperature)[:, None]

    def uniforms(theta: FloatArray, temperature: FloatArray) -> FloatArray:
        return by_temperature(lambda v, cdf: np.interp(v, grid, cdf), theta[:, 0], temperature)[:, None]

    data, centre = Dataset.of(x), np.array([0.0])
    return Known("mixture with two modes", model, data, draw, uniforms, centre=centre, scale=scale)


DIM = 6
"""Coordinates of `correlated` and `regression`: more than the four normals of a block of random numbers."""


def correlated() -> Known:
    """The mean of 20 draws from a normal distribution in six dimensions, all correlations different; a flat prior.

    Standard deviations are 1, as in the coordinates of a preconditioned run: a part that depends on the point, such as
    a step size of 0.2 + 1 / (1 + theta^2), then varies over the target.
    """
    n = 20
    rng = np.random.default_rng(7)
    root = np.tril(rng.normal(0.0, 0.25, (DIM, DIM)), -1) + np.eye(DIM)
    root /= np.linalg.norm(root, axis=1, keepdims=True)  # of a correlation matrix with condition number 7
    x = (rng.standard_normal((n, DIM)) @ root.T + rng.normal(0.0, 0.5, DIM)) * n**0.5
    half = torch.from_numpy(np.linalg.inv(root) / n**0.5)
    mean = x.mean(0)

    def log_lik(theta: Tensor, rows: Rows) -> Tensor:
        return -0.5 * ((rows["x"] - theta[:, None]) @ half.T).square().sum(-1)

    def uniforms(theta: FloatArray, temperature: FloatArray) -> FloatArray:
        """Of independent normals, of their sums in pairs, and of their square sum."""
        z = np.linalg.solve(root, (theta - mean).T).T / (temperature**0.5)[:, None]
        sums = (z + np.roll(z, 1, axis=1)) * 0.5**0.5
        return np.column_stack([special.ndtr(z), special.ndtr(sums), special.chdtr(DIM, (z**2).sum(1))])

    def draw(rng: np.random.Generator, t: FloatArray) -> FloatArray:
        drawn: FloatArray = mean + (t**0.5)[:, None] * (rng.standard_normal((len(t), DIM)) @ root.T)
        return drawn

    def bounds(data: Rows, kind: str, reference: Reference | None) -> Bounds:
        """A term is h(theta' - theta).h(x - (theta + theta') / 2), with h the matrix `half`."""

        def width(theta: Tensor, to: Tensor) -> Tensor:
            size = torch.maximum((theta @ half.T).norm(dim=-1), (to @ half.T).norm(dim=-1))
            return ((to - theta) @ half.T).norm(dim=-1) * size.clamp_min(1.0)

        return Bounds(1 + (data["x"] @ half.T).norm(dim=-1), width)

    def lower_bound(theta: Tensor, rows: Rows, anchor: Tensor | None) -> Tensor:
        residual = (rows["x"] - theta[:, None]) @ half.T
        return log_lik(theta, rows) - gaussian_gap(residual).sum(-1)

    model = BoundedFunction(log_lik, [0.0] * DIM, bounds=bounds, lower_bound=lower_bound)
    return Known(
        f"correlated Gaussian, D = {DIM}",
        model,
        Dataset.of(x),
        draw,
        uniforms,
        centre=mean,
        scale=1.0,
        covariance=root @ root.T,
    )


def regression(n: int) -> Known:
    """A logistic regression in six dimensions, whose model has compiled pieces; its posterior is nearly normal."""
    rng = np.random.default_rng(19)
    x = rng.standard_normal((n, DIM)) * np.linspace(0.6, 1.4, DIM)
    y = np.where(rng.random(n) < special.expit(x @ np.linspace(-0.5, 0.5, DIM)), 1.0, -1.0)
    mode, precision = np.zeros(DIM), np.eye(DIM)
    for _ in range(20):  # Newton's method
        p = special.expit(x @ mode)
        precision = np.eye(DIM) + (x * (p * (1 - p))[:, None]).T @ x
        mode += np.linalg.solve(precision, x.T @ (0.5 * (y + 1) - p) - mode)
    covariance = np.linalg.inv(precision)
    root = np.linalg.cholesky(covariance)

    def draw(rng: np.random.Generator, t: FloatArray) -> FloatArray:
        drawn: FloatArray = mode + (t**0.5)[:, None] * (rng.standard_normal((len(t), DIM)) @ root.T)
        return drawn

    def uniforms(theta: FloatArray, temperature: FloatArray) -> FloatArray:
        """Of the normal approximation."""
        z = np.linalg.solve(root, (theta - mode).T).T / (temperature**0.5)[:, None]
        return np.asarray(special.ndtr(z))

    data = Dataset({"x": torch.from_numpy(x), "y": torch.from_numpy(y)})
    scale = float(np.sqrt(np.diag(covariance).min()))
    return Known(
        f"logistic regression, D = {DIM}",
        Logistic(DIM, prior_variance=1.0),
        data,
        draw,
        uniforms,
        centre=mode,
        scale=scale,
        covariance=covariance,
    )


def positive() -> Known:
    """The rates of two exponential distributions, 20 draws from each, with gamma priors: gamma posteriors.

    At temperature T the density is proportional to [theta^(a - 1) exp(-b theta)]^(1/T): gamma with shape
    (a - 1) / T + 1 and rate b / T. Where a rate is not positive, the log-likelihood is -infinity.
    """
    x = np.random.default_rng(13).exponential([1.0, 0.5], (20, 2))
    shape, rate = 2.0 + len(x), 1.0 + x.sum(0)

    def log_lik(theta: Tensor, rows: Rows) -> Tensor:
        at = theta[:, None]
        log_density = at.clamp_min(1e-300).log() - at * rows["x"]
        return log_density.masked_fill(at <= 0, -torch.inf).sum(-1)

    def log_prior(theta: Tensor) -> Tensor:
        return (theta.clamp_min(1e-300).log() - theta).masked_fill(theta <= 0, -torch.inf).sum(-1)

    def uniforms(theta: FloatArray, temperature: FloatArray) -> FloatArray:
        t = temperature[:, None]
        return np.asarray(special.gammainc((shape - 1) / t + 1, theta.clip(0.0) * rate / t))

    def draw(rng: np.random.Generator, temperature: FloatArray) -> FloatArray:
        t = temperature[:, None]
        return rng.gamma(np.broadcast_to((shape - 1) / t + 1, (len(t), 2))) * t / rate

    model = FunctionModel(log_lik, [1.0, 1.0], log_prior, batched=True)
    sd = shape**0.5 / rate
    return Known(
        "two positive rates",
        model,
        Dataset.of(x),
        draw,
        uniforms,
        centre=shape / rate,
        scale=float(sd.min()),
        covariance=np.diag(sd**2),
    )


N_TOSSED = 10
"""Tosses of `tossed`."""


def tossed(heads: int, surrogate: str = "none") -> Target:
    """Ten tosses of a coin with P(heads) = 1 / (1 + exp(-theta)) and a given number of heads; P has a uniform prior."""

    def log_lik(theta: Tensor, rows: Rows) -> Tensor:
        return rows["x"] * theta - torch.nn.functional.softplus(theta)

    def log_prior(theta: Tensor) -> Tensor:
        p = torch.nn.functional.logsigmoid
        return p(theta[:, 0]) + p(-theta[:, 0])

    x = (np.arange(N_TOSSED) < heads).astype(np.float64)

    def bounds(data: Rows, kind: str, reference: Reference | None) -> Bounds:
        return constant_bounds([1.0, None, None], data, kind, reference)

    def lower_bound(theta: Tensor, rows: Rows, anchor: Tensor | None) -> Tensor:
        """Jaakkola & Jordan (1997), touching at the anchor or at 1.5."""
        at = 1.5 if anchor is None else max(abs(float(anchor[0])), 1e-3)
        a = -math.tanh(at / 2) / (4 * at)
        return (
            rows["x"] * theta - 0.5 * theta + a * (theta.square() - at**2) + at / 2 - math.log1p(math.exp(at))
        )

    model = BoundedFunction(log_lik, [0.0], log_prior, bounds=bounds, lower_bound=lower_bound)
    return Target(model, Dataset.of(x), surrogate=surrogate)


def free_mean(n: int) -> Known:
    """Return the target of `gaussian_mean` whose model has no faster forms."""

    def log_lik(theta: Tensor, rows: Rows) -> Tensor:
        return -0.5 * (rows["x"] - theta) ** 2

    def log_prior(theta: Tensor) -> Tensor:
        return -0.5 * theta[:, 0] ** 2

    def lower_bound(theta: Tensor, rows: Rows, anchor: Tensor | None) -> Tensor:
        return log_lik(theta, rows) - gaussian_gap(rows["x"] - theta)

    model = BoundedFunction(log_lik, [0.0], log_prior, bounds=location_bounds, lower_bound=lower_bound)
    return gaussian_mean(n)._replace(model=model)


def holed() -> Target:
    """Return a Gaussian mean's target, n = 30, whose log-likelihood is NaN where theta is above 1."""

    def log_lik(theta: Tensor, rows: Rows) -> Tensor:
        return torch.where(theta > 1, torch.nan, -0.5 * (rows["x"] - theta) ** 2)

    model = FunctionModel(log_lik, [0.0], batched=True, bounds=location_bounds)
    return Target(model, gaussian_mean(30).data)
