"""The means of a mixture of equal Gaussians (Li & Wong 2017, section 5.3 and Appendix D)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.models.bounds import bounds_in_means
from mhrun.models.compressed import bins_of, compress
from mhrun.models.naming import numbered
from mhrun.native import NativeModel, NativeSums, Piece, available, compiled, piece, routine
from mhrun.native.forms import flat_prior_gradient
from mhrun.native.maths import exp_negative_64, log_64
from mhrun.random import Draws
from mhrun.types import Bounds, Field, Reference, Rows

# Half the width of a bin in standard deviations of a component, and nodes per bin. Exact to about 1e-11 a datum as
# long as the means are within five standard deviations of each other; see `compress`.
_HALF_WIDTH, _NODES = 0.25, 16
_MAX_EXPONENT = 660.0  # whose products and quotients are still numbers in float64
_MIN_COMPILED_MEANS = 16  # number of means from which a compiled pass over the nodes pays


class MixtureMeans:
    """x_i ~ (1/D) sum_j N(theta_j, v), theta uniform on [-half, half]^D.

    The likelihood is invariant under permutations of the means. Data generated with theta* = (2, 0, ..., 0) give a
    posterior with D modes, at 2 e_j. D is the number of components. Field: ``x`` (n,).

    log p(x | theta) is a smooth function of the scalar x, so its sums over many data are computed from its values at a
    few hundred nodes (`mhrun.models.compressed`). The exponentials at the nodes factor into those of the bin centres
    and of the offsets within a bin; where these would leave the range of float64, each is computed by itself. The sum
    over all data or a minibatch is equal up to rounding. It is counted as one log-likelihood per datum.

    Args:
        components: D.
        variance: v, the variance of a component.
        half: half the side of the prior's cube; the posterior would be improper without the cube.
        start: starting value of each coordinate, one number or D.

    Raises:
        Refusal: an invalid setting.
    """

    bound_kinds: Sequence[str] = ("difference",)

    def __init__(
        self,
        components: int = 50,
        variance: float = 1.0,
        half: float = 10.0,
        start: float | Sequence[float] = 0.0,
    ) -> None:
        if components < 1 or not variance > 0 or not half > 0:
            raise Refusal("MixtureMeans needs components >= 1, a positive variance and a positive half.")
        self.names: Sequence[str] = numbered(components)
        self.dim = components
        self.variance = float(variance)
        self.half = float(half)
        self.start = np.atleast_1d(np.asarray(start, np.float64))
        if len(self.start) not in (1, components):
            raise Refusal(
                f"start has {len(self.start)} numbers for {components} means; give one, or one each."
            )
        if (abs(self.start) > half).any():
            raise Refusal(f"start lies outside the prior's cube, [-{half:g}, {half:g}]^{components}.")

    @property
    def _constant(self) -> float:
        return -math.log(self.dim) - 0.5 * math.log(2 * math.pi * self.variance)

    @property
    def fields(self) -> Mapping[str, Field]:
        """What the data must be: ``x`` (n,)."""
        return {"x": Field(())}

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, D)."""
        point = torch.from_numpy(np.broadcast_to(self.start, (self.dim,)).copy())
        return point.to(draws.device).repeat(chains, 1)

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) -> (C,): 0 in the cube, -infinity outside."""
        return torch.where(theta.abs().amax(-1) <= self.half, 0.0, -torch.inf).to(theta.dtype)

    def log_prior_grad(self, theta: Tensor) -> None:
        """Return None: the prior is flat."""
        return

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """(C, D) and x (C or 1, m) -> (C, m), in the precision of theta."""
        x = rows["x"].to(theta.dtype)
        gaps = (x[..., None] - theta[:, None, :]).square_()
        return torch.logsumexp(gaps.mul_(-0.5 / self.variance), -1) + self._constant

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """Return the bounds of kind ``difference``, see `mhrun.models.bounds.bounds_in_means`."""
        return bounds_in_means(data["x"], self.variance, lambda theta: theta)

    def log_lik_and_grad(self, theta: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the log-likelihoods (C, m) and the gradient (C, D) of their mean."""
        log_lik, shares, gaps = self._parts(theta, rows["x"])
        return log_lik, shares.mul_(gaps).mean(1) / self.variance

    def full_log_lik(self, data: Rows) -> Callable[[Tensor], Tensor]:
        """Return theta (C, D) -> the sum over all data (C,), from the nodes."""
        value_and_grad = self._value_and_grad(data)
        return lambda theta: value_and_grad(theta)[0]

    def full_value_and_grad(self, data: Rows) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return theta (C, D) -> the sum over all data (C,) and its gradient (C, D), from the nodes."""
        if self.dim < _MIN_COMPILED_MEANS or data["x"].device.type != "cpu" or not available():
            return self._value_and_grad(data)
        native = self.native(data, full=True)

        def both(theta: Tensor) -> tuple[Tensor, Tensor]:
            points = theta.double().contiguous().numpy()
            total, grad = np.empty(len(points)), np.empty_like(points)
            _each()(native.args, native.args[10].ravel(), points, total, grad)
            return torch.from_numpy(total), torch.from_numpy(grad).to(theta.dtype)

        return both

    def _value_and_grad(self, data: Rows) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        centres, offsets, weights = self._nodes(data)
        device = data["x"].device
        x = torch.from_numpy((centres[:, None] + offsets).ravel()).to(device)
        w = torch.from_numpy(weights.ravel()).to(device)

        def both(theta: Tensor) -> tuple[Tensor, Tensor]:
            log_lik, shares, gaps = self._parts(theta.double(), x)
            grad = (w @ shares.mul_(gaps)) / self.variance
            return log_lik @ w, grad.to(theta.dtype)

        return both

    def _parts(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-likelihoods (C, m) at x (m,) or (C or 1, m), the components' shares of them and x - theta_d."""
        gaps = x.to(theta.dtype)[..., None] - theta[:, None, :]
        parts = gaps.square().mul_(-0.5 / self.variance)
        top = torch.logsumexp(parts, -1, keepdim=True)
        return top[..., 0] + self._constant, parts.sub_(top).exp_(), gaps

    def _nodes(self, data: Rows) -> tuple[Any, Any, Any]:
        """Return the bins' centres (B,), the nodes' offsets from them (Q,) and the weights of all data (B, Q)."""
        x, half_width = data["x"].cpu().numpy(), _HALF_WIDTH * math.sqrt(self.variance)
        centres, offsets = bins_of(x, half_width, _NODES)
        _, weights = compress(x, half_width, _NODES, every_bin=True)
        return centres, offsets, weights.reshape(len(centres), len(offsets))

    def native(self, data: Rows, *, full: bool) -> NativeModel:
        """Return the pieces of the fused loop, float64."""
        centres, offsets, weights = self._nodes(data)
        order, v = len(offsets), self.variance
        angles = np.pi * (np.arange(order) + 0.5) / order
        # Weights of the nodes from a datum's Chebyshev polynomials: (order, order).
        basis = 2 / order * np.cos(np.outer(np.arange(order), angles))
        basis[0] *= 0.5
        base = (-0.5 / v) * (centres[:, None] + offsets) ** 2 + self._constant
        args = (
            *(data["x"].numpy(), v, self.half, self._constant),
            *(float(data["x"].min()), _HALF_WIDTH * math.sqrt(v), centres, offsets, basis, base, weights),
        )
        sums = NativeSums(weights.size, weights.ravel(), _gather, _score)
        return NativeModel(
            args,
            log_prior=_log_prior,
            difference=_difference,
            moments=_moments,
            total=_total,
            gradient=_gradient,
            prior_gradient=flat_prior_gradient,
            sums=sums,
        )


@piece
def _log_prior(args: Any, theta: Any) -> Any:
    inside = True
    for d in range(len(theta)):
        inside = inside and abs(theta[d]) <= args[2]
    return 0.0 if inside else -np.inf


@piece
def _log_lik(args: Any, x: Any, theta: Any) -> Any:
    scale, top = -0.5 / args[1], -np.inf
    for d in range(len(theta)):
        top = max(top, scale * (x - theta[d]) ** 2)
    total = 0.0
    for d in range(len(theta)):
        total += exp_negative_64(scale * (x - theta[d]) ** 2 - top)
    return args[3] + top + math.log(total)


@piece
def _difference(args: Any, index: Any, m: Any, origin: Any, candidate: Any) -> Any:
    total, square = 0.0, 0.0
    for j in range(m):
        x = np.float64(args[0][index[j]])
        d = _log_lik(args, x, candidate) - _log_lik(args, x, origin)
        total += d
        square += d * d
    return total, square


@piece
def _moments(args: Any, index: Any, m: Any, theta: Any) -> Any:
    total, square = 0.0, 0.0
    for j in range(m):
        value = _log_lik(args, np.float64(args[0][index[j]]), theta)
        total += value
        square += value * value
    return total, square


@routine
def _gather(args: Any, index: Any, m: Any, out: Any) -> None:
    """Fill out (nodes,) with the weights of a minibatch: sums of Chebyshev polynomials first, then of nodes."""
    x, low, half_width, centres, basis = args[0], args[4], args[5], args[6], args[8]
    order, bins = basis.shape[0], len(centres)
    tile = 64
    sums = np.zeros((bins, order))
    where = np.empty(tile, np.int64)
    values = np.empty((tile, order))
    scale = 1.0 / (2.0 * half_width)
    for start in range(0, m, tile):
        size = min(tile, m - start)
        for j in range(size):
            position = (np.float64(x[index[start + j]]) - low) * scale
            where[j] = min(np.int64(position), np.int64(bins - 1))
            values[j, 0] = 1.0
            values[j, 1] = 2.0 * (position - np.float64(where[j])) - 1.0
        for j in range(size):
            u = values[j, 1]
            previous, current = 1.0, u
            for k in range(2, order):
                previous, current = current, 2.0 * u * current - previous
                values[j, k] = current
        for j in range(size):
            row = where[j]
            for k in range(order):
                sums[row, k] += values[j, k]
    for b in range(bins):
        for q in range(order):
            out[b * order + q] = 0.0
        for k in range(order):
            for q in range(order):
                out[b * order + q] += sums[b, k] * basis[k, q]


@piece
def _power(y: Any) -> Any:
    """Return exp(y), for y of either sign."""
    e = exp_negative_64(-abs(y))
    return e if y <= 0.0 else 1.0 / e


@piece
def _largest_exponent(args: Any, theta: Any) -> Any:
    """Return a bound on the absolute exponents of all factors and products in `_score`."""
    v, half_width, centres = args[1], args[5], args[6]
    largest = 0.0
    for d in range(len(theta)):
        for c in (centres[0], centres[-1]):  # between them it is between those
            exponent = abs(theta[d] * c - 0.5 * theta[d] * theta[d]) / v
            largest = max(largest, exponent + 2.0 * half_width * abs(theta[d]) / v)
    return largest


@piece
def _plain_score(args: Any, weights: Any, theta: Any, grad: Any, values: Any) -> Any:
    """Return what `_score` does, from the components' own exponents at each node: slower, and right for any theta."""
    v, centres, offsets = args[1], args[6], args[7]
    dim, order, scale = len(theta), len(offsets), -0.5 / args[1]
    total = 0.0
    for d in range(dim):
        grad[d] = 0.0
    for at in range(len(weights)):
        x = centres[at // order] + offsets[at % order]
        values[at] = _log_lik(args, x, theta)
        total += weights[at] * values[at]
        for d in range(dim):
            gap = x - theta[d]
            share = exp_negative_64(min(scale * gap * gap + args[3] - values[at], 0.0))
            grad[d] += weights[at] * share * gap / v
    return total


@piece
def _score(args: Any, weights: Any, theta: Any, grad: Any, values: Any) -> Any:
    """Return sum_j weights_j l(node_j); fill grad (D,) with its gradient and values (nodes,) with l(node_j)."""
    v, half_width, centres, offsets, base = args[1], args[5], args[6], args[7], args[9]
    dim, bins, order = len(theta), len(centres), len(offsets)
    if _largest_exponent(args, theta) > _MAX_EXPONENT:
        return _plain_score(args, weights, theta, grad, values)
    coarse, fine = np.empty((bins, dim)), np.empty((order, dim))
    ratio, scaled, part_grad = np.empty(dim), np.empty((order, dim)), np.empty(dim)
    for d in range(dim):
        coarse[0, d] = _power((theta[d] * centres[0] - 0.5 * theta[d] * theta[d]) / v)
        ratio[d] = _power(2.0 * half_width * theta[d] / v)
        grad[d] = 0.0
    for b in range(1, bins):
        for d in range(dim):
            coarse[b, d] = coarse[b - 1, d] * ratio[d]
    for q in range(order):
        for d in range(dim):
            fine[q, d] = _power(offsets[q] * theta[d] / v)
            scaled[q, d] = fine[q, d] * theta[d]
    total = 0.0
    for b in range(bins):
        for d in range(dim):
            part_grad[d] = 0.0
        for q in range(order):
            at = b * order + q
            density = 0.0
            for d in range(dim):
                density += coarse[b, d] * fine[q, d]
            values[at] = base[b, q] + log_64(density)
            total += weights[at] * values[at]
            share = weights[at] / density
            shifted = share * (centres[b] + offsets[q])
            for d in range(dim):
                part_grad[d] += shifted * fine[q, d] - share * scaled[q, d]
        for d in range(dim):
            grad[d] += coarse[b, d] * part_grad[d]
    for d in range(dim):
        grad[d] /= v
    return total


@lru_cache(maxsize=1)
def _each() -> Piece:
    """Return the compiled pass over all data at several points (C, D)."""

    def loop(args: Any, weights: Any, theta: Any, total: Any, grad: Any) -> None:
        values = np.empty(len(weights))
        for c in range(len(theta)):
            total[c] = _score(args, weights, theta[c], grad[c], values)

    return compiled(loop)


@piece
def _total(args: Any, theta: Any) -> Any:
    weights = args[10].ravel()
    return _score(args, weights, theta, np.empty(len(theta)), np.empty(len(weights)))


@piece
def _gradient(args: Any, index: Any, m: Any, theta: Any, out: Any) -> None:
    weights = np.empty(args[10].size)
    _gather(args, index, m, weights)
    _score(args, weights, theta, out, np.empty(len(weights)))
