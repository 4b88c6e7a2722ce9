"""The log posterior on a part of the data, which pilots climb and differentiate."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from mhrun.engine.limits import most_scaled
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Target

# Data that modes and curvature are computed from, at most, and their number times that of the parameters where there is
# a curvature, which has two gradients for each.
ROWS, _NUMBERS = 20_000, 5_000_000
_VALUES = 1 << 24  # numbers of one evaluation, at most


class _Evaluated:
    """A count that surfaces of one target share."""

    n_grad = 0


class Surface:
    """The log posterior at temperature 1 in the units of its gradient, from a fixed part of the data.

    f is `mhrun.target.Target.value`: its gradient is that which proposals and dynamics use.

    Args:
        target: the target.
        temperature: T.
        seed: of the choice of data.
    """

    def __init__(self, target: Target, temperature: float, seed: int) -> None:
        self.target = target
        self.temperature = temperature
        self.is_whole = False  # whether it uses all data, see `of_all_data`
        is_curved = target.dim <= most_scaled(target.model)
        self.size = min(target.n, ROWS, *[_NUMBERS // target.dim] * is_curved)
        streams = Streams(derive_key(seed, "reference"), 1, target.device)
        self._index = Draws(streams, 0, ahead=1).index(target.n, self.size, replacement=False)
        self._evaluated = _Evaluated()

    def of_all_data(self) -> Surface:
        """Return the surface of all data, for a part that has hardly any of what matters; it adds to the same count."""
        whole = copy.copy(self)
        whole.size, whole.is_whole = self.target.n, True
        return whole

    @property
    def n_grad(self) -> int:
        """The gradients of single data evaluated."""
        return self._evaluated.n_grad

    @n_grad.setter
    def n_grad(self, count: int) -> None:
        self._evaluated.n_grad = count

    def value_and_grad(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return f (C,) and its gradient (C, D) at theta (C, D), float64."""
        block = max(1, _VALUES // (self.size * max(1, len(theta[0]) // 8)))
        parts = [self._part(theta[first : first + block]) for first in range(0, len(theta), block)]
        return torch.cat([value for value, _ in parts]), torch.cat([grad for _, grad in parts])

    def _part(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        temperature = torch.full((len(theta),), self.temperature, dtype=torch.float64, device=theta.device)
        if self.is_whole:
            point = self.target.evaluate_full(theta, temperature)
        else:
            point = self.target.evaluate(theta, self._index, temperature)
        assert point.grad is not None
        assert point.log_lik_mean is not None
        self.n_grad += len(theta) * self.size
        value = self.target.value(point.log_lik_mean, point.log_prior, temperature)
        return value.double(), point.grad.double()

    def on_all_data(self, points: Tensor) -> Tensor:
        """Return f on all data (P,) at points (P, D), float64."""
        if self.size == self.target.n:
            return self.value_and_grad(points)[0]
        temperature = torch.full((len(points),), self.temperature, dtype=torch.float64, device=points.device)
        found = self.target.evaluate_full(points, temperature)
        assert found.log_lik_mean is not None
        self.n_grad += len(points) * self.target.n
        return self.target.value(found.log_lik_mean, found.log_prior, temperature).double()

    def single_gradients(self, points: Tensor, count: int) -> Tensor:
        """Return gradients of K single data (P, K, D) at points (P, D); K is count / P, or all that were read if fewer.

        They are those of the log-likelihoods, less their control variate if there is a surrogate. Points have
        different data while there are enough: what is rare among the data, such as a value of a category, is then
        found more often.
        """
        n_points = len(points)
        per_point = min(count // n_points, self.size)
        places = torch.arange(n_points * per_point, device=self._index.device) % self.size
        index = self._index[0, places][:, None]
        grad = self._gradients(points.repeat_interleave(per_point, 0), index)
        return grad.reshape(n_points, -1, grad.shape[-1])

    def all_single_gradients(self, points: Tensor) -> Iterator[Tensor]:
        """Yield gradients of all single data, as `single_gradients`: blocks (P, K, D), point p of data p, p + P, ...

        The last n mod P data have none.
        """
        n_points = len(points)
        per_point = self.target.n // n_points
        for first in range(0, per_point, per_block := max(1, ROWS // n_points)):
            rows = torch.arange(first, min(first + per_block, per_point), device=points.device)
            index = (rows * n_points + torch.arange(n_points, device=points.device)[:, None]).reshape(-1, 1)
            yield self._gradients(points.repeat_interleave(len(rows), 0), index).unflatten(0, (n_points, -1))

    def _gradients(self, theta: Tensor, index: Tensor) -> Tensor:
        """Return the gradient (K, D) of datum index[k] at theta[k], less its control variate; index (K, 1)."""
        self.n_grad += self.target.gradients.per_datum * len(index)
        _, grad = self.target.gradients.mean_log_lik(theta, index)
        grad = grad.double()
        if self.target.surrogate is not None:
            grad = grad - self.target.surrogate.gradient_error(theta, self.target.data.rows(index))
        return grad
