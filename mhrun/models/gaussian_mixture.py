"""A mixture of Gaussians as the target density (Zhang et al. 2020, section 5.1; Luo et al. 2020, section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeModel, piece
from mhrun.native.forms import flat_prior_gradient
from mhrun.native.maths import exp_negative_64
from mhrun.random import Draws
from mhrun.types import Field, Rows


class GaussianMixture:
    """theta ~ sum_k weights[k] N(centres[k], variances[k] I), a density without data; used with `NoData`.

    Args:
        centres: K points of D numbers.
        variances: variance of each (isotropic) component, or one for all.
        weights: weights of the components; equal by default.
        start: default starting point of the chains; the origin if None.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        centres: Sequence[Sequence[float]],
        variances: float | Sequence[float] = 1.0,
        weights: Sequence[float] | None = None,
        start: Sequence[float] | None = None,
    ) -> None:
        if not len(centres) or len({len(centre) for centre in centres}) != 1 or not len(centres[0]):
            raise Refusal("GaussianMixture needs centres, each of as many numbers.")
        self.centres = np.array(centres, np.float64)
        count, self.dim = self.centres.shape
        spread = (
            np.broadcast_to(np.asarray(variances, np.float64), (count,)) if np.ndim(variances) == 0 else None
        )
        self.variances = np.asarray(variances, np.float64) if spread is None else spread.copy()
        self.weights = np.full(count, 1 / count) if weights is None else np.asarray(weights, np.float64)
        self.start = np.zeros(self.dim) if start is None else np.asarray(start, np.float64)
        if self.variances.shape != (count,) or not (self.variances > 0).all():
            raise Refusal(f"variances must be one positive number, or {count}.")
        if self.weights.shape != (count,) or (self.weights <= 0).any() or abs(self.weights.sum() - 1) > 1e-9:
            raise Refusal(f"weights must be {count} positive shares that sum to 1.")
        if self.start.shape != (self.dim,):
            raise Refusal(f"start must be {self.dim} numbers.")
        self.names: Sequence[str] = tuple(f"theta{d + 1}" for d in range(self.dim))
        self._memo: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor, Tensor]] = {}
        # log of a component's weight and normalising constant
        self._heights = np.log(self.weights) - 0.5 * self.dim * np.log(2 * math.pi * self.variances)

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x``, zeros."""
        return {"x": Field(None, "zeros")}

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, D)."""
        return torch.from_numpy(self.start).to(draws.device).repeat(chains, 1)

    def log_prior(self, theta: Tensor) -> Tensor:
        """Return 0 (C,): the density is entirely in the likelihood."""
        return theta.new_zeros(len(theta))

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """Return the log density (C, m) of theta (C, D), the same for each of the m data."""
        parts, _ = self._parts(theta)
        return parts.logsumexp(-1)[:, None].expand(-1, rows["x"].shape[1])

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the log density (C, m) and its gradient (C, D)."""
        parts, gaps = self._parts(theta)
        value = parts.logsumexp(-1)
        share = (parts - value[:, None]).exp()  # posterior probability of each component at theta
        pull = gaps / self._constants(theta)[1][:, None]
        return value[:, None].expand(-1, rows["x"].shape[1]), (share[..., None] * pull).sum(1)

    def _parts(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-density of each weighted component (C, K), and centre - theta (C, K, D)."""
        centres, variances, heights = self._constants(theta)
        gaps = centres - theta[:, None]
        return heights - gaps.square().sum(-1) / (2 * variances), gaps

    def _constants(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return centres (K, D), variances (K,) and log heights (K,) on the device of theta; they are moved once."""
        key = like.dtype, like.device
        if key not in self._memo:
            parts = (self.centres, self.variances, self._heights)
            centres, variances, heights = (
                torch.as_tensor(part, dtype=like.dtype, device=like.device) for part in parts
            )
            self._memo[key] = centres, variances, heights
        return self._memo[key]

    def full_log_lik(self, data: Rows) -> Callable[[Tensor], Tensor]:
        """Return theta (C, D) -> the log-density times the number of data (C,)."""
        n = len(data["x"])
        return lambda theta: n * self._parts(theta)[0].logsumexp(-1)

    def native(self, data: Rows, *, full: bool) -> NativeModel:
        """Return the pieces of the fused loop, in float64."""
        rates = 0.5 / self.variances
        args = (np.ascontiguousarray(self.centres.T), rates, self._heights, float(len(data["x"])))
        return NativeModel(
            args,
            log_prior=_log_prior,
            difference=_difference,
            moments=_moments,
            total=_total,
            gradient=_gradient,
            prior_gradient=flat_prior_gradient,
            terms=_terms,
            full_pass_stats=_full_pass_stats,
        )


@piece
def _components(args: Any, theta: Any) -> Any:
    """Return the log-density of each weighted component at theta (K,), and the largest."""
    centres, rates, heights, _n = args
    parts = heights.copy()
    for d in range(len(theta)):
        for k in range(len(parts)):
            parts[k] -= rates[k] * (centres[d, k] - theta[d]) ** 2
    return parts, parts.max()


@piece
def _log_density(args: Any, theta: Any) -> Any:
    parts, top = _components(args, theta)
    if top == -math.inf:  # beyond overflow: the difference of two infinities is no number
        return top
    total = 0.0
    for k in range(len(parts)):
        total += exp_negative_64(parts[k] - top)
    return top + math.log(total)


@piece
def _gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
    centres, rates = args[0], args[1]
    parts, top = _components(args, theta)
    total = 0.0
    for k in range(len(parts)):
        share = exp_negative_64(parts[k] - top)
        total += share
        parts[k] = 2.0 * share * rates[k]
    for d in range(len(theta)):
        pull = 0.0
        for k in range(len(parts)):
            pull += parts[k] * (centres[d, k] - theta[d])
        out[d] = m * pull / total


@piece
def _log_prior(args: Any, theta: Any) -> Any:
    return 0.0


@piece
def _difference(args: Any, index: Any, m: Any, origin: Any, candidate: Any) -> Any:
    term = _log_density(args, candidate) - _log_density(args, origin)
    return m * term, m * term**2


@piece
def _moments(args: Any, index: Any, m: Any, theta: Any) -> Any:
    value = _log_density(args, theta)
    return m * value, m * value**2


@piece
def _total(args: Any, theta: Any) -> Any:
    return args[3] * _log_density(args, theta)


@piece
def _terms(args: Any, index: Any, m: Any, origin: Any, candidate: Any, out: Any) -> None:
    term = _log_density(args, candidate) - _log_density(args, origin)
    for j in range(m):
        out[j] = term


@piece
def _full_pass_stats(args: Any, origin: Any, candidate: Any) -> Any:
    term = _log_density(args, candidate) - _log_density(args, origin)
    return args[3] * term, args[3] * term**2, abs(term)
