"""The mean of a Gaussian of unit variance in several dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal, UserError
from mhrun.models.naming import numbered
from mhrun.models.weights import precision_of
from mhrun.native import NativeModel, piece
from mhrun.native.vectors import square_sum
from mhrun.random import Draws
from mhrun.types import Field, Rows

_TILE = 256  # rows processed at once, so that they fit in the L1 cache


class GaussianLocation:
    """x ~ N(theta, I_D); theta ~ N(0, prior_variance I), or flat (Wu, Wang & Wong 2020, sections 2.3 and 3.1).

    Field: ``x`` (n, D). The log-likelihood of a row omits the normalising constant.

    Args:
        dim: D.
        prior_variance: prior variance of each mean; flat if None.
        start: starting value of each coordinate.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(self, dim: int, prior_variance: float | None = None, start: float = 0.0) -> None:
        if dim < 1:
            raise Refusal(f"dim = {dim} is not a valid number of coordinates; choose dim >= 1.")
        self.dim = dim
        self.names: Sequence[str] = numbered(dim)
        self.precision = precision_of(prior_variance, self)
        self.first = float(start)

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n, D)."""
        return {"x": Field((self.dim,), setting="model.dim")}

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return the starting points (C, D)."""
        return torch.full((chains, self.dim), self.first, dtype=torch.float64, device=draws.device)

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) -> (C,), summed in float64."""
        return -0.5 * self.precision * square_sum(theta)

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D) and x (C or 1, m, D) -> (C, m), in the higher precision of theta and x, float64 for integers.

        Raises:
            UserError: rows of a width other than D.
        """
        x = rows["x"] if rows["x"].is_floating_point() else rows["x"].double()
        if x.dim() != 3 or x.shape[-1] != self.dim:
            raise UserError(
                f"GaussianLocation has dim = {self.dim} and a row of x the shape {tuple(x.shape[2:])}."
            )
        if len(x) == len(theta):
            return -0.5 * (x - theta[:, None]).square().sum(-1)
        # |x - theta|^2 is expanded: the differences would be a tensor of all rows for every chain. Their mean is
        # subtracted first, lest the squares of data far from 0 cancel.
        centre = x.mean(-2, dtype=torch.promote_types(x.dtype, theta.dtype))
        x, point = x - centre[:, None], theta - centre
        product = torch.einsum("...md,cd->cm", x[0], point)
        return product - 0.5 * x.square().sum(-1) - 0.5 * point.square().sum(-1, keepdim=True)

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return `log_lik` and the gradient of its mean over the rows, mean(x) - theta (C, D)."""
        mean = rows["x"].mean(-2, dtype=None if rows["x"].is_floating_point() else torch.float64)
        return self.log_lik(theta, rows), mean.to(theta.dtype) - theta

    def full_log_lik(self, data: Rows) -> Callable[[Tensor], Tensor]:
        """Return theta (C, D) -> the exact sum over all data (C,), from sufficient statistics."""
        n, mean, scatter = _statistics(data)
        centre = torch.from_numpy(mean).to(data["x"].device)
        return lambda theta: -0.5 * (n * (theta.double() - centre).square().sum(-1) + scatter)

    def full_value_and_grad(self, data: Rows) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return theta (C, D) -> the sum over all data (C,) and its gradient n (mean - theta), (C, D)."""
        n, mean, scatter = _statistics(data)
        centre = torch.from_numpy(mean).to(data["x"].device)

        def both(theta: Tensor) -> tuple[Tensor, Tensor]:
            gap = theta.double() - centre
            return -0.5 * (n * gap.square().sum(-1) + scatter), (-n * gap).to(theta.dtype)

        return both

    def native(self, data: Rows, *, full: bool) -> NativeModel:
        """Return the pieces of the fused loop, in float64."""
        statistics = _statistics(data) if full else (len(data["x"]), np.empty(0), 0.0)
        args = (data["x"].contiguous().view(-1).numpy(), self.precision, *statistics)
        return NativeModel(
            args,
            log_prior=_log_prior,
            difference=_difference,
            moments=_moments,
            total=_total,
            gradient=_gradient,
            prior_gradient=_prior_gradient,
        )


def _statistics(data: Rows) -> tuple[int, Any, float]:
    """Return the number of data, their mean (D,) and the sum of the squares of their distances from it."""
    x = data["x"].double()
    mean = x.mean(0)
    return len(x), mean.cpu().numpy(), float((x - mean).square().sum())


@piece
def _log_prior(args: Any, theta: Any) -> Any:
    square = 0.0
    for d in range(len(theta)):
        square += theta[d] * theta[d]
    return -0.5 * args[1] * square


@piece
def _prior_gradient(args: Any, theta: Any, out: Any) -> None:
    for d in range(len(theta)):
        out[d] = -args[1] * theta[d]


@piece
def _moments(args: Any, index: Any, m: Any, theta: Any) -> Any:
    x, dim = args[0], len(theta)
    offset, value = np.empty(_TILE, np.int64), np.empty(_TILE)
    total, square = 0.0, 0.0
    for start in range(0, m, _TILE):
        size = min(_TILE, m - start)
        for j in range(size):
            offset[j] = index[start + j] * dim
            value[j] = 0.0
        for d in range(dim):  # one coordinate of many data at once, so that the loop vectorises
            for j in range(size):
                gap = x[offset[j] + d] - theta[d]
                value[j] -= 0.5 * gap * gap
        for j in range(size):
            total += value[j]
            square += value[j] * value[j]
    return total, square


@piece
def _difference(args: Any, index: Any, m: Any, origin: Any, candidate: Any) -> Any:
    x, dim = args[0], len(origin)
    offset, value = np.empty(_TILE, np.int64), np.empty(_TILE)
    total, square = 0.0, 0.0
    for start in range(0, m, _TILE):
        size = min(_TILE, m - start)
        for j in range(size):
            offset[j] = index[start + j] * dim
            value[j] = 0.0
        for d in range(dim):
            step, middle = candidate[d] - origin[d], 0.5 * (candidate[d] + origin[d])
            for j in range(size):
                value[j] += step * (x[offset[j] + d] - middle)
        for j in range(size):
            total += value[j]
            square += value[j] * value[j]
    return total, square


@piece
def _total(args: Any, theta: Any) -> Any:
    n, mean, scatter = args[2], args[3], args[4]
    square = 0.0
    for d in range(len(theta)):
        gap = theta[d] - mean[d]
        square += gap * gap
    return -0.5 * (n * square + scatter)


@piece
def _gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
    x, dim = args[0], len(theta)
    for d in range(dim):
        total = 0.0
        for j in range(m):
            total += x[index[j] * dim + d]
        out[d] = total - m * theta[d]
