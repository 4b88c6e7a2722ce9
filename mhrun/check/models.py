"""Models of the targets that checks use: with bounds, or with a count of evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from mhrun.models.function import FunctionModel
from mhrun.models.gaussian_mean import GaussianMean
from mhrun.random import Draws
from mhrun.types import Bounds, Model, Reference, Rows
from mhrun.types.capabilities import HasBounds, HasLowerBounds, bound_kinds_of, offers


class BoundedFunction(FunctionModel):
    """A function with bounds on its terms and a lower bound log B_i (C, m), for kernels that need one of them."""

    def __init__(
        self,
        log_lik: Callable[[Tensor, Rows], Tensor],
        start: list[float],
        log_prior: Callable[[Tensor], Tensor] | None = None,
        *,
        bounds: Callable[[Rows, str, Reference | None], Bounds],
        lower_bound: Callable[[Tensor, Rows, Tensor | None], Tensor],
    ) -> None:
        super().__init__(log_lik, start, log_prior, batched=True, bounds=bounds)
        self._lower_bound = lower_bound

    def lower_bound(self, theta: Tensor, rows: Rows, anchor: Tensor | None = None) -> Tensor:
        """Return log B_i, see `mhrun.types.Model`."""
        return self._lower_bound(theta, rows, anchor)


class BoundedMean(GaussianMean):
    """A Gaussian mean with a lower bound that leaves about a quarter of the data bright."""

    def lower_bound(self, theta: Tensor, rows: Rows, anchor: Tensor | None = None) -> Tensor:
        """Return l_i - 0.05 - (x_i - theta)^2 / 4, (C, m)."""
        return self.log_lik(theta, rows) - gaussian_gap(rows["x"] - theta)


class Counting:
    """A model that counts the rows it evaluates and has no faster forms."""

    def __init__(self, model: Model) -> None:
        self.dim, self.names = model.dim, model.names
        self._model = model
        self.bound_kinds = bound_kinds_of(model)
        self.values = 0  # log-likelihoods alone
        self.gradients = 0  # with a gradient

    def init(self, chains: int, draws: Draws) -> Tensor:
        """As the model."""
        return self._model.init(chains, draws)

    def log_prior(self, theta: Tensor) -> Tensor:
        """As the model."""
        return self._model.log_prior(theta)

    def bounds(self, data: Rows, kind: str, reference: Reference | None = None) -> Bounds:
        """As the model."""
        assert offers(self._model, HasBounds)
        return self._model.bounds(data, kind, reference)

    def lower_bound(self, theta: Tensor, rows: Rows, anchor: Tensor | None = None) -> Tensor:
        """As the model, and count: a bound is an evaluation too."""
        assert offers(self._model, HasLowerBounds)
        return self._counted(self._model.lower_bound(theta, rows, anchor), theta)

    def log_lik(self, theta: Tensor, rows: Rows) -> Tensor:
        """As the model, and count."""
        return self._counted(self._model.log_lik(theta, rows), theta)

    def _counted(self, log_lik: Tensor, theta: Tensor) -> Tensor:
        if theta.requires_grad and torch.is_grad_enabled():
            self.gradients += math.prod(log_lik.shape)
        else:
            self.values += math.prod(log_lik.shape)
        return log_lik


def gaussian_gap(distance: Tensor) -> Tensor:
    """Return l_i - log B_i of a Gaussian datum at a distance from its mean."""
    return 0.05 + 0.25 * distance.square()


def location_bounds(data: Rows, kind: str, reference: Reference | None) -> Bounds:
    """Bounds of a term whose derivative in theta (C, 1) is at most |x| + |theta|: a mean, or two opposite ones."""

    def width(theta: Tensor, to: Tensor) -> Tensor:
        farthest = torch.maximum(theta.abs(), to.abs())[:, 0].clamp_min(1.0)
        return (to - theta).abs()[:, 0] * farthest

    return Bounds(1 + data["x"].abs(), width)
