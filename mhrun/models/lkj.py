"""Correct draws of `LKJCholesky`; those of torch are wrong in three dimensions or more."""

from __future__ import annotations

import copy

import torch
from torch.distributions import Beta, Distribution, Independent, LKJCholesky


def with_correct_draws(prior: Distribution) -> Distribution:
    """Return a distribution whose draws have its density, if it is an LKJ distribution; else itself.

    Row k = 1, ..., D - 1 of a Cholesky factor is sqrt(y) u and sqrt(1 - y) on the diagonal, with u uniform on the
    sphere in R^k and y ~ Beta(k / 2, eta + (D - 1 - k) / 2): Lewandowski, Kurowicka and Joe (2009), section 3.2, and
    by the density of `LKJCholesky.log_prob`, (1 - y)^(eta - 1 + (D - 1 - k) / 2) on the ball |w|^2 = y. Up to 2.13 at
    least torch draws y from Beta(k - 1/2, .), so that correlations in rows k > 1 are too large.
    """
    if isinstance(prior, Independent):
        outer = copy.copy(prior)
        outer.base_dist = with_correct_draws(prior.base_dist)
        return outer
    if not isinstance(prior, LKJCholesky):
        return prior
    fixed = copy.copy(prior)
    second = prior._beta.concentration0
    first = torch.arange(prior.dim, dtype=second.dtype, device=second.device).clamp(min=1) / 2
    fixed._beta = Beta(first.expand_as(second), second)
    return fixed
