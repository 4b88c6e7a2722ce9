"""Log densities of priors on (0, 1) and on simplices in unconstrained coordinates, exact where values round to an end.

With x = sigmoid(u), log(1 - x) is log sigmoid(-u), at u = 40 too, where x is 1 in float64. Beta(0.05, 0.05) has 8 % of
its mass beyond the largest number below 1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Beta, Dirichlet, Kumaraswamy
from torch.distributions.transforms import SigmoidTransform, StickBreakingTransform, Transform
from torch.nn.functional import logsigmoid

LogDensity = Callable[[Tensor], Tensor]


def density_of(prior: object, transform: Transform | None) -> LogDensity | None:
    """Return log p(T(u)) |dT/du| (..., *batch) of a prior as a function of u; None if it is not one of these."""
    for kind, of_values, density in _DENSITIES:
        if type(prior) is kind and isinstance(
            transform, of_values
        ):  # a derived class may have another density
            return partial(density, prior)
    return None


def _beta(prior: Beta, u: Tensor) -> Tensor:
    a, b = prior.concentration1.to(u), prior.concentration0.to(u)
    constant = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    return a * logsigmoid(u) + b * logsigmoid(-u) + constant


def _kumaraswamy(prior: Kumaraswamy, u: Tensor) -> Tensor:
    a, b = prior.concentration1.to(u), prior.concentration0.to(u)
    log_power = a * logsigmoid(u)  # of x^a
    rest = (b - 1) * (-torch.expm1(log_power)).log()
    return a.log() + b.log() + log_power + rest + logsigmoid(-u)


def _dirichlet(prior: Dirichlet, u: Tensor) -> Tensor:
    """Break a stick: x_k is the share sigmoid(v_k) of what the first k - 1 left, with v_k = u_k - log(K - k)."""
    alpha = prior.concentration.to(u)
    v = u - torch.arange(u.shape[-1], 0, -1).to(u).log()
    # Log of what k pieces leave, k = 0..K-1
    left = torch.nn.functional.pad(logsigmoid(-v).cumsum(-1), (1, 0))
    taken = logsigmoid(v) + left[..., :-1]
    log_x = torch.cat([taken, left[..., -1:]], -1)
    log_jacobian = (taken + logsigmoid(-v)).sum(-1)
    constant = torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha).sum(-1)
    return ((alpha - 1) * log_x).sum(-1) + log_jacobian + constant


_DENSITIES: tuple[tuple[type, type, Callable[[Any, Tensor], Tensor]], ...] = (
    (Beta, SigmoidTransform, _beta),
    (Kumaraswamy, SigmoidTransform, _kumaraswamy),
    (Dirichlet, StickBreakingTransform, _dirichlet),
)
