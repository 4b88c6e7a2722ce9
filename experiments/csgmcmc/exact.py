"""The posterior of a small logistic regression without a chain: importance sampling about its mode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import multivariate_t

from mhrun.report.vocabulary import Array
from mhrun.target import Target

DEGREES = 10.0  # of freedom of the t distribution that is drawn from: tails wider than any of the posterior's
DRAWS = 100_000
_CHUNK = 10_000


class Posterior(NamedTuple):
    """What is known of a posterior."""

    mean: Array  # (D,)
    sd: Array  # (D,)
    log_evidence: float
    draws: float  # how many independent draws the weighted ones are worth (Kish); a mean is off by sd/sqrt(draws)
    # Largest eigenvalue of the negative Hessian at the mode: steps above 2/curvature diverge there
    curvature: float


def posterior(target: Target) -> Posterior:
    """Return mean, standard deviations and evidence of a logistic regression's posterior at temperature 1.

    Importance sampling from a t distribution with the mode and the curvature of the posterior. The posterior has the
    tails of its Gaussian prior, so that no weight is unbounded.

    Args:
        target: of `mhrun.models.logistic.Logistic` with a proper prior; fields x (n, D) and y (n,).

    Raises:
        ValueError: the prior is flat.
    """
    precision = float(target.model.precision)  # type: ignore[attr-defined]
    if precision <= 0:
        raise ValueError("evidence and moments need a proper prior.")
    signed = signed_rows(target)
    dim, draws = signed.shape[1], DRAWS
    mode, hessian = _mode(signed, precision)
    shape = multivariate_t(mode, np.linalg.inv(hessian), df=DEGREES, seed=np.random.default_rng(0))
    points = shape.rvs(draws).reshape(draws, dim)
    log_density = np.concatenate(
        [log_lik(signed, part) for part in np.split(points, range(_CHUNK, draws, _CHUNK))]
    )
    log_density += 0.5 * (dim * np.log(precision / (2 * np.pi)) - precision * np.square(points).sum(axis=1))
    log_weight = log_density - shape.logpdf(points)
    weight = np.exp(log_weight - logsumexp(log_weight))
    mean = weight @ points
    return Posterior(
        mean,
        np.sqrt(weight @ np.square(points - mean)),
        float(logsumexp(log_weight) - np.log(draws)),
        float(1 / np.square(weight).sum()),
        float(np.linalg.eigvalsh(hessian)[-1]),
    )


def signed_rows(target: Target) -> Array:
    """Return y_i x_i (n, D), all that the likelihood depends on."""
    x, y = (target.data.fields[name].double() for name in ("x", "y"))
    signed: Array = (y[:, None] * x).numpy()
    return signed


def log_lik(signed: Array, theta: Array) -> Array:
    """Return sum_i log p(y_i | theta) for theta (P, D), rows y_i x_i (n, D): (P,)."""
    return log_expit(theta @ signed.T).sum(axis=1)


def _mode(signed: Array, precision: float) -> tuple[Array, Array]:
    """Return the mode (D,) and the negative Hessian (D, D) there, by Newton's method with halved steps."""
    theta = np.zeros(signed.shape[1])

    def height(at: Array) -> float:
        return float(log_lik(signed, at[None])[0] - 0.5 * precision * at @ at)

    while True:
        right = expit(signed @ theta)
        gradient = signed.T @ (1 - right) - precision * theta
        hessian = (signed.T * (right * (1 - right))) @ signed + precision * np.eye(len(theta))
        step = np.linalg.solve(hessian, gradient)
        if gradient @ step < 1e-16:  # so much, at most, is the height below its maximum
            return theta, hessian
        while height(theta + step) < height(theta) and np.abs(step).max() > 1e-12:
            step = step / 2
        theta = theta + step
