"""A mixture of two Gaussians with tied means (Welling & Teh 2011; Li & Wong 2017, section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.models.bounds import bounds_in_means, centred_norms
from mhrun.models.compressed import compress
from mhrun.native import NativeBounds, NativeModel, piece, routine
from mhrun.native.maths import (
    exp_negative_32,
    exp_negative_64,
    log1p_unit_64,
    log_of_ratio_32,
    log_of_ratio_64,
)
from mhrun.random import Draws
from mhrun.types import Bounds, Field, Reference, Rows

f32 = np.float32
LOG_2PI = math.log(2 * math.pi)
# Half the width of a bin, in standard deviations of a component. Exact to about 1e-13 a datum as long as the
# means are less than 8 standard deviations apart (see `compress`).
_HALF_WIDTH, _NODES = 0.18, 20
_CELLS = 1024  # number of cells of the data for a bound on the terms
_PART = 1 << 22  # data read at once to fill them
_TILE = 1024  # data summed in float32 before being added to the float64 sum


class TiedMeans:
    """x_i ~ 1/2 N(theta1, v) + 1/2 N(theta1 + theta2, v), theta1 ~ N(0, s1), theta2 ~ N(0, s2) (variances).

    The likelihood is the same at (theta1, theta2) and (theta1 + theta2, -theta2), so that the posterior
    has two modes: at about (0, 1) and (1, -1) for the paper's data. D = 2.

    Args:
        variance: v, the variance of a component.
        prior_variances: (s1, s2).
        start: default starting point of the chains.
    """

    dim = 2
    names: Sequence[str] = ("theta1", "theta2")
    bound_kinds: Sequence[str] = ("difference",)

    def __init__(
        self,
        variance: float = 2.0,
        prior_variances: Sequence[float] = (10.0, 1.0),
        start: Sequence[float] = (0.0, 1.0),
    ) -> None:
        if variance <= 0 or min(prior_variances) <= 0:
            raise Refusal("TiedMeans needs positive variances.")
        if len(prior_variances) != 2 or len(start) != 2:
            raise Refusal("TiedMeans has two parameters: prior_variances and start have two numbers each.")
        self.variance = float(variance)
        self.prior_variances = tuple(float(v) for v in prior_variances)
        self.start = tuple(float(x) for x in start)

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n,)."""
        return {"x": Field(())}

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, 2)."""
        return torch.tensor(self.start, dtype=torch.float64, device=draws.device).repeat(chains, 1)

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, 2) -> (C,)."""
        s1, s2 = self.prior_variances
        return -0.5 * (theta[:, 0] ** 2 / s1 + theta[:, 1] ** 2 / s2)

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, 2) and x (C or 1, m) -> (C, m)."""
        x, first, shift = rows["x"], theta[:, :1], theta[:, 1:]
        near, far = (x - first) ** 2, (x - first - shift) ** 2
        scale = -0.5 / self.variance
        constant = math.log(0.5) - 0.5 * (LOG_2PI + math.log(self.variance))
        return constant + torch.logaddexp(scale * near, scale * far)

    def full_log_lik(self, data: Rows) -> Callable[[Tensor], Tensor]:
        """Return the exact sum over all data: a quadratic from sufficient statistics plus, with
        log(N1 + N2) = log N1 + softplus(s x + t), a sum of softplus over compressed data.
        """  # noqa: D205
        constant, linear, square, nodes, weights = _statistics(data, self.variance)
        y, w = (torch.from_numpy(a).to(data["x"].device) for a in (nodes, weights))

        def total(theta: Tensor) -> Tensor:
            first, shift = theta[:, 0], theta[:, 1]
            s = shift / self.variance
            t = -s * (first + 0.5 * shift)
            quadratic = constant - (square - 2 * first * linear + len(data["x"]) * first**2) / (
                2 * self.variance
            )
            z = s[:, None] * y + t[:, None]
            soft = z.clamp_min(0) + torch.log1p(torch.exp(-z.abs()))  # softplus, without its overflow
            return quadratic + soft @ w

        return total

    def nodes(self, data: Rows) -> tuple[Rows, Tensor]:
        """Return rows (1, K) and weights (K,) on which sums over all data of smooth functions of log_lik are exact."""
        _constant, _linear, _square, nodes, weights = _statistics(data, self.variance)
        device = data["x"].device
        return {"x": torch.from_numpy(nodes).to(device)[None]}, torch.from_numpy(weights).to(device)

    def bound(self, data: Rows) -> Callable[[Tensor, Tensor], Tensor]:
        """Return (theta, theta') -> a bound on |d(x)|, d = log p(x|theta') - log p(x|theta), over the data, (C,).

        The data are divided into cells of width at most h. Between the smallest and the largest datum of a cell, d is
        within h^2 / 8 max |d''| of its chord. The bound is the largest |d| at these data plus that number, which is
        also the largest possible excess over the true maximum. See `_curvature` for d''.
        """
        ends, widest = _cells(data["x"].cpu().numpy())
        rows = {"x": torch.from_numpy(ends).to(data["x"].device)[None]}
        low, high = float(ends.min()), float(ends.max())

        def largest(origin: Tensor, candidate: Tensor) -> Tensor:
            before, after = self.log_lik(origin, rows), self.log_lik(candidate, rows)
            rounding = torch.finfo(after.dtype).eps * (before.abs() + after.abs()).amax(-1)
            start, end = (theta.double().unbind(-1) for theta in (origin, candidate))
            curved = _curvature(self.variance, low, high, start, end)
            return (after - before).abs().amax(-1) + widest**2 / 8 * curved + 4 * rounding

        return largest

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the bounds of kind ``difference``, see `mhrun.models.bounds.bounds_in_means`; they hold everywhere.

        The means are mu_1 = theta1 and mu_2 = theta1 + theta2.
        """

        def means(theta: Tensor) -> Tensor:
            return torch.stack((theta[:, 0], theta[:, 0] + theta[:, 1]), -1)

        return bounds_in_means(data["x"], self.variance, means)

    def native_bounds(self, data: Rows, kind: str, surrogate: Any) -> NativeBounds:
        """Return the pieces of the fused loop on bounded terms."""
        x, (centre, half, _) = data["x"].numpy(), centred_norms(data["x"])
        args = (x, self.variance, *self.prior_variances, *_statistics(data, self.variance), centre, half)
        return NativeBounds(args, _log_prior, _width, _terms, _total, _size)

    def native(self, data: Rows, *, full: bool) -> NativeModel:
        """Return the pieces of the fused loop. Per-datum arithmetic is float32, sums of all data float64."""
        empty = np.empty(0)
        statistics = _statistics(data, self.variance) if full else (0.0, 0.0, 0.0, empty, empty)
        x = data["x"].numpy()
        cells = _cells(x) if full else (x[:0], 0.0)
        args = (x, self.variance, *self.prior_variances, *statistics, *cells)
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


@piece
def _width(args: Any, origin: Any, candidate: Any) -> Any:
    v, centre, half = args[1], args[-2], args[-1]
    one, two = origin[0] + origin[1], candidate[0] + candidate[1]
    reach = max(abs(origin[0] - centre), abs(one - centre), abs(candidate[0] - centre), abs(two - centre))
    return max(abs(candidate[0] - origin[0]), abs(two - one)) * max(reach, half) / v


def _cells(x: Any) -> tuple[Any, float]:
    """Return the smallest and largest datum of each non-empty cell, sorted, and the largest distance in a cell."""
    low, high = float(x.min()), float(x.max())
    least, greatest = np.full(_CELLS, np.inf), np.full(_CELLS, -np.inf)
    for start in range(0, len(x), _PART):
        part = x[start : start + _PART].astype(np.float64)
        cell = ((part - low) * ((_CELLS - 1) / max(high - low, 1e-30))).astype(np.int64)
        np.minimum.at(least, cell, part)
        np.maximum.at(greatest, cell, part)
    occupied = least <= greatest
    ends = np.unique(np.concatenate([least[occupied], greatest[occupied]]))
    return ends.astype(x.dtype), float((greatest[occupied] - least[occupied]).max())


@piece
def _curvature(v: Any, low: Any, high: Any, origin: Any, candidate: Any) -> Any:
    """Return a bound on |d''| over [low, high], where d is the term of a datum x; for numbers or tensors (C,).

    With z = s x + t, s = theta2 / v, the logit of the second component, and z' that at theta',
    d'' = s'^2 f(z') - s^2 f(z), where f, the logistic density, is at most 1/4 and |f'| at most 1 / (6 sqrt 3). So

        |d''| <= |s'^2 - s^2| / 4 + |s s'| max |z' - z| / (6 sqrt 3).
    """
    s, r = origin[1] / v, candidate[1] / v
    rest = s * (origin[0] + 0.5 * origin[1]) - r * (candidate[0] + 0.5 * candidate[1])
    farthest = abs((r - s) * low + rest) + abs((r - s) * high + rest)  # one of the two would do
    return abs(r * r - s * s) / 4 + abs(s * r) * farthest * 0.0962251


def _statistics(data: Rows, variance: float) -> tuple[float, float, float, Any, Any]:
    x = data["x"].cpu().numpy()
    n = len(x)
    nodes, weights = compress(x, _HALF_WIDTH * math.sqrt(variance), _NODES)
    linear, square = float(weights @ nodes), float(weights @ nodes**2)
    return n * (math.log(0.5) - 0.5 * (LOG_2PI + math.log(variance))), linear, square, nodes, weights


@piece
def _log_prior(args: Any, theta: Any) -> Any:
    return -0.5 * (theta[0] ** 2 / args[2] + theta[1] ** 2 / args[3])


@piece
def _prior_gradient(args: Any, theta: Any, out: Any) -> None:
    out[0] = -theta[0] / args[2]
    out[1] = -theta[1] / args[3]


@piece
def _logit(v: Any, theta: Any) -> Any:
    """Return s and t, float32: the second component has the probability 1 / (1 + exp(-(s x + t)))."""
    return f32(theta[1] / v), f32(-theta[1] * (theta[0] + 0.5 * theta[1]) / v)


@piece
def _gather(x: Any, index: Any, start: Any, m: Any, tile: Any) -> Any:
    """Fill a tile with the data of a minibatch from `start` on, and return how many they are.

    Arithmetic on data that lie side by side runs in vector lanes.
    """
    size = min(len(tile), m - start)
    for j in range(size):
        tile[j] = x[index[start + j]]
    return size


@piece
def _difference(args: Any, index: Any, m: Any, origin: Any, candidate: Any) -> Any:
    x, v = args[0], args[1]
    # log N1(candidate) - log N1(origin) is linear in x; the rest is a difference of softplus(s x + t).
    grad = f32((candidate[0] - origin[0]) / v)
    level = f32((origin[0] ** 2 - candidate[0] ** 2) / (2 * v))
    s, t = _logit(v, origin)
    r, u = _logit(v, candidate)
    rows = np.empty(_TILE, np.float32)
    total, square = 0.0, 0.0
    for start in range(0, m, _TILE):
        size = _gather(x, index, start, m, rows)
        one, two = f32(0), f32(0)
        for j in range(size):
            before, after = s * rows[j] + t, r * rows[j] + u
            d = grad * rows[j] + level + max(after, f32(0)) - max(before, f32(0))
            d += log_of_ratio_32(exp_negative_32(-abs(after)), exp_negative_32(-abs(before)))
            one += d
            two += d * d
        total += np.float64(one)
        square += np.float64(two)
    return total, square


@piece
def _moments(args: Any, index: Any, m: Any, theta: Any) -> Any:
    x, v = args[0], args[1]
    constant = f32(math.log(0.5) - 0.5 * math.log(2 * math.pi * v))
    scale, first = f32(-0.5 / v), f32(theta[0])
    s, t = _logit(v, theta)
    rows = np.empty(_TILE, np.float32)
    total, square = 0.0, 0.0
    for start in range(0, m, _TILE):
        size = _gather(x, index, start, m, rows)
        one, two = f32(0), f32(0)
        for j in range(size):
            z = s * rows[j] + t
            near = rows[j] - first
            value = constant + scale * near * near + max(z, f32(0))
            value += log_of_ratio_32(exp_negative_32(-abs(z)), f32(0))
            one += value
            two += value * value
        total += np.float64(one)
        square += np.float64(two)
    return total, square


@piece
def _total(args: Any, theta: Any) -> Any:
    x, v = args[0], args[1]
    constant, linear, square, nodes, weights = args[4], args[5], args[6], args[7], args[8]
    s = theta[1] / v
    t = -s * (theta[0] + 0.5 * theta[1])
    soft = 0.0
    for j in range(len(nodes)):
        z = s * nodes[j] + t
        soft += weights[j] * (max(z, 0.0) + log1p_unit_64(exp_negative_64(-abs(z))))
    return constant - (square - 2 * theta[0] * linear + len(x) * theta[0] ** 2) / (2 * v) + soft


@piece
def _gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
    x, v = args[0], args[1]
    first, shift = f32(theta[0]), f32(theta[1])
    s, t = _logit(v, theta)
    rows = np.empty(_TILE, np.float32)
    total, square = 0.0, 0.0
    for start in range(0, m, _TILE):
        size = _gather(x, index, start, m, rows)
        one, two = f32(0), f32(0)
        for j in range(size):
            z = s * rows[j] + t
            e = exp_negative_32(-abs(z))
            share = f32(1) / (f32(1) + e)  # probability of the likelier component
            far = share if z >= f32(0) else e * share
            gap = rows[j] - first
            one += gap - far * shift
            two += far * (gap - shift)
        total += np.float64(one)
        square += np.float64(two)
    out[0] = total / v
    out[1] = square / v


@piece
def _term(x: Any, v: Any, origin: Any, candidate: Any) -> Any:
    """Return log p(x | candidate) - log p(x | origin) in float64."""
    before = (origin[1] * x - origin[1] * (origin[0] + 0.5 * origin[1])) / v
    after = (candidate[1] * x - candidate[1] * (candidate[0] + 0.5 * candidate[1])) / v
    near = (candidate[0] - origin[0]) * (2 * x - origin[0] - candidate[0]) / (2 * v)
    soft = max(after, 0.0) - max(before, 0.0)
    return near + soft + log_of_ratio_64(exp_negative_64(-abs(after)), exp_negative_64(-abs(before)))


@routine
def _size(args: Any, i: Any, origin: Any, candidate: Any) -> Any:
    x, v = np.float64(args[0][i]), args[1]
    total, constant = 0.0, 0.5 * math.log(2 * math.pi * v) + math.log(2.0)
    for theta in (origin, candidate):
        z = theta[1] * (x - theta[0] - 0.5 * theta[1]) / v
        soft = max(z, 0.0) + math.log1p(math.exp(-abs(z)))
        total += abs(soft - 0.5 * (x - theta[0]) ** 2 / v - constant)
    return total


@piece
def _terms(args: Any, index: Any, m: Any, origin: Any, candidate: Any, out: Any) -> None:
    x, v = args[0], args[1]
    for j in range(m):
        out[j] = np.float64(x[index[j]])
    for j in range(m):
        out[j] = _term(out[j], v, origin, candidate)


@piece
def _full_pass_stats(args: Any, origin: Any, candidate: Any) -> Any:
    v, nodes, weights, ends, widest = args[1], args[7], args[8], args[9], args[10]
    total, square, largest = 0.0, 0.0, 0.0
    for j in range(len(nodes)):
        term = _term(nodes[j], v, origin, candidate)
        total += weights[j] * term
        square += weights[j] * term * term
    for j in range(len(ends)):
        largest = max(largest, abs(_term(np.float64(ends[j]), v, origin, candidate)))
    low, high = np.float64(ends[0]), np.float64(ends[-1])
    largest += widest * widest / 8 * _curvature(v, low, high, origin, candidate)
    # Possible rounding loss: a few units in the last place of the largest summand.
    reach = max(abs(low), abs(high)) + abs(origin[0]) + abs(candidate[0]) + abs(origin[1]) + abs(candidate[1])
    return total, square, largest + 1e-15 * reach * reach / v
