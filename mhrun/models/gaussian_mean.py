"""The mean of a Gaussian of unit variance (Seita et al. 2017, section 2.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.models.bounds import centred_norms
from mhrun.models.weights import precision_of
from mhrun.native import NativeBounds, NativeModel, piece, routine
from mhrun.random import Draws
from mhrun.types import BOUND_KINDS, Bounds, Field, Reference, Rows

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class GaussianMean:
    """x_i ~ N(theta, 1); theta ~ N(0, prior_variance), or flat. D = 1.

    With the flat prior the posterior is N(mean of the data, 1/n). This is the worst case of sequential tests: with a
    probability that is positive for every n, they need all data.

    Args:
        prior_variance: prior variance of theta; flat if None.
        start: default starting value of the chains.

    Raises:
        Refusal: a prior variance that is not positive.
    """

    dim = 1
    names: Sequence[str] = ("theta",)
    bound_kinds: Sequence[str] = BOUND_KINDS

    def __init__(self, prior_variance: float | None = None, start: float = 0.0) -> None:
        self.precision = precision_of(prior_variance, self)
        self.start = float(start)

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n,)."""
        return {"x": Field(())}

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, 1)."""
        return torch.full((chains, 1), self.start, dtype=torch.float64, device=draws.device)

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, 1) -> (C,)."""
        return -0.5 * self.precision * theta[:, 0] ** 2

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, 1) and x (C or 1, m) -> (C, m)."""
        return -0.5 * (rows["x"] - theta) ** 2 - HALF_LOG_2PI

    def full_log_lik(self, data: Rows) -> Callable[[Tensor], Tensor]:
        """Return theta (C, 1) -> the exact sum over all data (C,), from sufficient statistics."""
        n, mean, square = _statistics(data)
        return lambda theta: -0.5 * (square + n * (mean - theta[:, 0]) ** 2) - n * HALF_LOG_2PI

    def bound(self, data: Rows) -> Callable[[Tensor, Tensor], Tensor]:
        """Return ``(theta, to) -> max_i |log p(x_i | to) - log p(x_i | theta)|``, (C,), from the extreme data."""
        low, high = (float(value) for value in torch.aminmax(data["x"]))

        def largest(theta: Tensor, to: Tensor) -> Tensor:
            step, middle = (to - theta)[:, 0], 0.5 * (to + theta)[:, 0]  # a term is step (x - middle)
            return (step * torch.maximum((low - middle).abs(), (high - middle).abs())).abs()

        return largest

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the bounds, see `mhrun.types.Bounds`; they hold everywhere.

        A term is (theta' - theta) (x_i - (theta + theta') / 2), bounded with c the mean of the data and a half their
        standard deviation by (1 + |x_i - c| / a) max(a, |(theta + theta') / 2 - c|) |theta' - theta|. All remainders
        of order 1 are equal, and those of order 2 are 0.
        """
        centre, half, weights = centred_norms(data["x"])
        if kind == "difference":

            def width(theta: Tensor, to: Tensor) -> Tensor:
                step, middle = (to - theta)[:, 0].double(), 0.5 * (to + theta)[:, 0].double()
                return step.abs() * (middle - centre).abs().clamp_min(half)

            return Bounds(weights, width)
        assert reference is not None
        anchor = reference.theta

        def remainder(theta: Tensor, to: Tensor) -> Tensor:
            return ((to - theta) * (0.5 * (to + theta) - anchor))[:, 0].double().abs()

        stretch = 1.0 if reference.root is None else float(reference.root)

        def slope(theta: Tensor) -> Tensor:
            return stretch * (theta - anchor)[:, 0].double().abs()

        size = 1.0 if kind == "taylor1" else 0.0
        return Bounds(torch.full_like(weights, size), remainder, slope)

    def native_bounds(self, data: Rows, kind: str, surrogate: Any) -> NativeBounds | None:
        """Return the pieces of the fused loop on bounded terms, or None for another kind than ``difference``."""
        if kind != "difference":
            return None
        centre, half, _ = centred_norms(data["x"])
        args = (data["x"].numpy(), self.precision, *_statistics(data), centre, half)
        return NativeBounds(args, _log_prior, _width, _terms, _total, _size)

    def native(self, data: Rows, *, full: bool) -> NativeModel:
        """Return the pieces of the fused loop, in float64."""
        low, high = (float(value) for value in torch.aminmax(data["x"]))
        args = (data["x"].numpy(), self.precision, *_statistics(data), low, high)
        return NativeModel(
            args,
            log_prior=_log_prior,
            difference=_difference,
            moments=_moments,
            total=_total,
            gradient=_gradient,
            prior_gradient=_prior_gradient,
            terms=_terms,
            full_pass_stats=_full_pass_stats,
        )


def _statistics(data: Rows) -> tuple[int, float, float]:
    """Return the number of data, their mean and the sum of their squared deviations from it."""
    x = data["x"].cpu().numpy()
    mean = float(x.mean(dtype=np.float64))
    square = 0.0
    for start in range(0, len(x), 1 << 20):  # the data may be memory-mapped
        part = x[start : start + (1 << 20)].astype(np.float64) - mean
        square += float(part @ part)
    return len(x), mean, square


@piece
def _log_prior(args: Any, theta: Any) -> Any:
    return -0.5 * args[1] * theta[0] ** 2


@piece
def _prior_gradient(args: Any, theta: Any, out: Any) -> None:
    out[0] = -args[1] * theta[0]


@piece
def _difference(args: Any, index: Any, m: Any, origin: Any, candidate: Any) -> Any:
    x = args[0]
    step, middle = candidate[0] - origin[0], 0.5 * (candidate[0] + origin[0])
    total, square = 0.0, 0.0
    for j in range(m):
        term = step * (x[index[j]] - middle)
        total += term
        square += term * term
    return total, square


@piece
def _moments(args: Any, index: Any, m: Any, theta: Any) -> Any:
    x = args[0]
    total, square = 0.0, 0.0
    for j in range(m):
        value = -0.5 * (x[index[j]] - theta[0]) ** 2 - HALF_LOG_2PI
        total += value
        square += value * value
    return total, square


@piece
def _total(args: Any, theta: Any) -> Any:
    n, mean, square = args[2], args[3], args[4]
    return -0.5 * (square + n * (mean - theta[0]) ** 2) - n * HALF_LOG_2PI


@piece
def _gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
    x = args[0]
    out[0] = 0.0
    for j in range(m):
        out[0] += x[index[j]] - theta[0]


@piece
def _terms(args: Any, index: Any, m: Any, origin: Any, candidate: Any, out: Any) -> None:
    x = args[0]
    step, middle = candidate[0] - origin[0], 0.5 * (candidate[0] + origin[0])
    for j in range(m):
        out[j] = step * (x[index[j]] - middle)


@routine
def _size(args: Any, i: Any, origin: Any, candidate: Any) -> Any:
    x = args[0][i]
    return 0.5 * (x - origin[0]) ** 2 + 0.5 * (x - candidate[0]) ** 2 + 2 * HALF_LOG_2PI


@piece
def _width(args: Any, origin: Any, candidate: Any) -> Any:
    middle = 0.5 * (candidate[0] + origin[0])
    return abs(candidate[0] - origin[0]) * max(abs(middle - args[5]), args[6])


@piece
def _full_pass_stats(args: Any, origin: Any, candidate: Any) -> Any:
    n, mean, square, low, high = args[2], args[3], args[4], args[5], args[6]
    step, middle = candidate[0] - origin[0], 0.5 * (candidate[0] + origin[0])
    total = step * n * (mean - middle)
    largest = max(abs(step * (low - middle)), abs(step * (high - middle)))
    return total, step**2 * (square + n * (mean - middle) ** 2), largest
