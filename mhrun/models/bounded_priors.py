"""Log densities of priors in unconstrained coordinates, exact where values round to an end of the support.

With x = sigmoid(u), log(1 - x) is log sigmoid(-u), at u = 40 too, where x is 1 in float64. Beta(0.05, 0.05) has 8 % of
its mass beyond the largest number below 1. With x = exp(u), log x is u, at u = -750 too, where x is 0: there a density
that is infinite at 0 would keep a chain for ever. Gamma(0.001, 0.001) has 47 % of its mass below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Chi2,
    Dirichlet,
    FisherSnedecor,
    Gamma,
    Independent,
    InverseGamma,
    Kumaraswamy,
    LogNormal,
    Weibull,
)
from torch.distributions.transforms import (
    AffineTransform,
    ComposeTransform,
    ExpTransform,
    IndependentTransform,
    SigmoidTransform,
    StickBreakingTransform,
    Transform,
)
from torch.nn.functional import logsigmoid

LogDensity = Callable[[Tensor], Tensor]

_SATURATED = 30.0  # u above which sigmoid(u) is 1 to rounding


def density_of(prior: object, transform: Transform | None) -> LogDensity | None:
    """Return log p(T(u)) |dT/du| (..., *batch) of a prior as a function of u; None if it is not one of these."""
    if isinstance(prior, Independent) and isinstance(transform, IndependentTransform):
        of_one = density_of(prior.base_dist, transform.base_transform)
        if of_one is None:
            return None
        joined = range(-prior.reinterpreted_batch_ndims, 0)
        return lambda u: of_one(u).sum(tuple(joined))
    if isinstance(transform, ComposeTransform) and not any(map(_changes, transform.parts[1:])):
        transform = transform.parts[0]
    for kind, of_values, density in _DENSITIES:
        # Not a derived class, which may have another density.
        if type(prior) is kind and isinstance(transform, of_values):
            return partial(density, prior)
    return None


def _changes(transform: Transform) -> bool:
    """Return whether a transform is other than x -> 0 + 1 x, with which torch has e^u begin at the bound 0.

    Tensors of bounds are not compared: they have a value for each parameter, and none while a function is recorded.
    """
    if not isinstance(transform, AffineTransform):
        return True
    return any(isinstance(each, Tensor) for each in (transform.loc, transform.scale)) or not (
        transform.loc == 0 and transform.scale == 1
    )


def _beta(prior: Beta, u: Tensor) -> Tensor:
    a, b = prior.concentration1.to(u), prior.concentration0.to(u)
    constant = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    return a * logsigmoid(u) + b * logsigmoid(-u) + constant


def _kumaraswamy(prior: Kumaraswamy, u: Tensor) -> Tensor:
    a, b = prior.concentration1.to(u), prior.concentration0.to(u)
    log_power = a * logsigmoid(u)  # of x^a
    # log(1 - x^a), which is log a - u far out
    near = (-torch.expm1(a * logsigmoid(u.clamp(max=_SATURATED)))).log()
    rest = torch.where(u > _SATURATED, a.log() - u, near)
    return a.log() + b.log() + log_power + (b - 1) * rest + logsigmoid(-u)


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


def _gamma(prior: Gamma, u: Tensor) -> Tensor:
    a, b = prior.concentration.to(u), prior.rate.to(u)
    return a * (u + b.log()) - b * u.exp() - torch.lgamma(a)


def _inverse_gamma(prior: InverseGamma, u: Tensor) -> Tensor:
    a, b = prior.concentration.to(u), prior.rate.to(u)
    return a * (b.log() - u) - b * (-u).exp() - torch.lgamma(a)


def _log_normal(prior: LogNormal, u: Tensor) -> Tensor:
    mean, sd = prior.loc.to(u), prior.scale.to(u)
    return -0.5 * ((u - mean) / sd).square() - sd.log() - 0.5 * math.log(2 * math.pi)


def _weibull(prior: Weibull, u: Tensor) -> Tensor:
    power = prior.concentration.to(u)
    log_power = power * (u - prior.scale.to(u).log())  # of (x / scale)^power
    return power.log() + log_power - log_power.exp()


def _fisher_snedecor(prior: FisherSnedecor, u: Tensor) -> Tensor:
    a, b = 0.5 * prior.df1.to(u), 0.5 * prior.df2.to(u)
    v = u + (a / b).log()
    return a * v + (a + b) * logsigmoid(-v) + torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)


_DENSITIES: tuple[tuple[type, type, Callable[[Any, Tensor], Tensor]], ...] = (
    (Beta, SigmoidTransform, _beta),
    (Kumaraswamy, SigmoidTransform, _kumaraswamy),
    (Dirichlet, StickBreakingTransform, _dirichlet),
    (Gamma, ExpTransform, _gamma),
    (Chi2, ExpTransform, _gamma),
    (InverseGamma, ExpTransform, _inverse_gamma),
    (LogNormal, ExpTransform, _log_normal),
    (Weibull, ExpTransform, _weibull),
    (FisherSnedecor, ExpTransform, _fisher_snedecor),
)
