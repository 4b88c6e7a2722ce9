"""Posterior means that errors are measured against: by quadrature, or by importance sampling on all data."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from mhrun.diagnostics.grid import Grid, log_masses
from mhrun.models.parameters import parameters_of
from mhrun.models.tied_means import TiedMeans
from mhrun.report.vocabulary import Array, Run
from mhrun.target import Target
from mhrun.target.reference import find_reference

from ..shared.exact import Truth as Quadrature

PLANE = Grid.of((-8.0, -8.0), (8.0, 8.0), 160)
EVALUATIONS = 4e8  # log-likelihoods that importance sampling takes
LEAST, MOST = 2000, 10_000  # points of importance sampling
_TOGETHER = 200  # points at once


class Truth(NamedTuple):
    """Posterior means of F functions, and what is known of them."""

    mean: Array  # (F,)
    sd: Array  # (F,) posterior standard deviations
    error: float  # mean over functions of (standard error of mean / sd)^2; 0 for quadrature
    center: Array  # (D,) of the coordinates u that the functions are of
    scale: Array  # (D,)
    products: bool  # whether u_j u_k are among the functions, or squares alone
    points: int  # of importance sampling; 0 for quadrature
    effective: float  # share of the points that weights leave effective; 1 for quadrature

    def functions(self, draws: Array) -> Array:
        """Return the functions at draws (..., D), of u = (theta - center) / scale."""
        return functions((draws - self.center) / self.scale, products=self.products)


def functions(u: Array, *, products: bool) -> Array:
    """Return u, u^2 and, with `products`, u_j u_k for j < k, at u (..., D)."""
    first, second = np.triu_indices(u.shape[-1], 1)
    extra = [u[..., first] * u[..., second]] if products else []
    return np.concatenate([u, u**2, *extra], axis=-1)


def truth(run: Run) -> Truth:
    """Return the truth of a run: quadrature for a mixture of tied means, else importance sampling."""
    if isinstance(run.target.model, TiedMeans):
        return by_quadrature(run.target, float(run.config["temperature"]))
    return by_importance(run.target, int(run.config["seed"]))


def coordinates(run: Run, method: str) -> Array:
    """Return a method's draws (C, S, D) in the coordinates that chains move in, as truths are: unconstrained."""
    draws, parameters = run.draws(method), parameters_of(run.target.model)
    if parameters is None or parameters.is_plain:
        return draws
    return parameters.theta(parameters.named(torch.from_numpy(draws)), "a draw").numpy()


def by_quadrature(target: Target, temperature: float) -> Truth:
    """Return the truth in two dimensions, of both parameters, their squares and their product."""
    logs = log_masses(Quadrature(target).log_tempered(temperature), PLANE, 3)
    mass = np.exp(logs - np.logaddexp.reduce(logs))
    x, y = [(edges[:-1] + edges[1:]) / 2 for edges in PLANE]
    centers = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
    values = functions(centers, products=True)
    mean = mass @ values
    sd = np.sqrt(mass @ (values - mean) ** 2)
    return Truth(mean, sd, 0.0, np.zeros(2), np.ones(2), products=True, points=0, effective=1.0)


def by_importance(target: Target, seed: int) -> Truth:
    """Return the truth at temperature 1, of all standardised coordinates u of theta and their squares.

    Points theta = mode + S z in pairs +z, -z, z ~ N(0, I), S S^T the covariance of the Laplace approximation q. With
    weights w = posterior / q, of mean 1, and E_q u = 0, E_q u^2 = 1 known,

        E u^k = E_q u^k + E_q (w - 1) u^k,

    whose error is sd(w) times that of independent draws: small where the posterior is nearly normal. The standard error
    is from the pairs.

    Raises:
        UserError: the posterior has no mode within reach.
    """
    reference = find_reference(target.model, target.data)
    count = int(np.clip(EVALUATIONS / target.n, LEAST, MOST)) // 2
    half = torch.from_numpy(np.random.default_rng(seed).standard_normal((count, len(reference.theta))))
    z = torch.cat((half, -half))
    theta = reference.theta + z @ reference.root.T
    with torch.no_grad():
        likelihood = torch.cat([target.full_log_lik(part).double() for part in theta.split(_TOGETHER)])
        log_w = (likelihood + target.model.log_prior(theta) + 0.5 * z.square().sum(-1)).numpy()
    w = np.exp(log_w - log_w.max())
    w /= w.mean()
    scale = reference.root.norm(dim=1).numpy()
    values = functions(((z @ reference.root.T).numpy() / scale), products=False)
    dim = len(scale)
    normal_mean = np.concatenate([np.zeros(dim), np.ones(dim)])
    mean = normal_mean + ((w - 1)[:, None] * values).mean(axis=0)
    # To first order in the error of the mean weight, which normalises the others.
    parts = (w - 1)[:, None] * values - (mean - normal_mean) - (w - 1)[:, None] * mean
    pairs = parts.reshape(2, count, -1).mean(axis=0)
    error = pairs.std(axis=0, ddof=1) / np.sqrt(count)
    # E_q u^2 = 1 and E_q u^4 = 3.
    square = np.repeat([1.0, 3.0], dim) + ((w - 1)[:, None] * values**2).mean(axis=0)
    sd = np.sqrt(np.maximum(square - mean**2, 1e-12))
    return Truth(
        mean,
        sd,
        float(np.mean((error / sd) ** 2)),
        reference.theta.numpy(),
        scale,
        products=False,
        points=2 * count,
        effective=float(1 / np.mean(w**2)),
    )
