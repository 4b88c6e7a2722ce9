"""The weights of a regression, with a normal or flat prior."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native.vectors import square_sum
from mhrun.random import Draws, Purpose, derive_key
from mhrun.types import DataShape


def precision_of(prior_variance: float | None, model: object) -> float:
    """Return the precision of a model's prior, 1 / variance; 0 for a flat one, whose variance is None.

    Raises:
        Refusal: a variance that is not positive.
    """
    if prior_variance is not None and not prior_variance > 0:
        raise Refusal(
            f"{type(model).__name__} needs a positive prior_variance, or null for a flat prior; it is {prior_variance}."
        )
    return 0.0 if prior_variance is None else 1.0 / prior_variance


def checked_start_sd(start_sd: float, model: object, *, or_zero: bool = True) -> float:
    """Return the standard deviation of a model's starting points.

    Raises:
        Refusal: it is negative, or 0 unless that is allowed.
    """
    if not (start_sd >= 0 if or_zero else start_sd > 0):
        raise Refusal(
            f"{type(model).__name__} needs start_sd {'>=' if or_zero else '>'} 0; it is {start_sd}."
        )
    return float(start_sd)


class Weights:
    """Weights theta ~ N(0, I / precision), or flat if the precision is 0.

    A regression that also has ``simulate(theta (D,), rows) -> {"y": (n,)}``, new outcomes for given features, can be
    calibrated with simulated data (`mhrun.check.calibration`).

    Attributes:
        dim: D, the number of weights.
        precision: of the prior, 1 / variance.
        start_sd: standard deviation of the normal starting points; 0 for theta = 0.
    """

    dim: int
    precision: float
    start_sd: float

    @classmethod
    def settings_of(cls, data: DataShape) -> dict[str, Any]:
        """Return the settings that follow from the data: a weight for each column of x, with its name."""
        return {"dim": data.features, "names": data.columns}

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return starting points (C, D)."""
        if self.start_sd == 0:
            return torch.zeros(chains, self.dim, dtype=torch.float64, device=draws.device)
        return self.start_sd * draws.normal(Purpose.INIT, self.dim)

    def log_prior(self, theta: Tensor) -> Tensor:
        """(C, D) -> (C,), summed in float64."""
        return -0.5 * self.precision * square_sum(theta)

    def log_prior_grad(self, theta: Tensor) -> Tensor | None:
        """Return the gradient (C, D) of the log-prior; None if it is flat."""
        return theta * -self.precision if self.precision else None

    def refuses_simulation(self) -> str | None:
        """Return why weights and outcomes cannot be drawn, or None."""
        if not callable(getattr(self, "simulate", None)):
            return (
                f"{type(self).__name__} does not say how outcomes are drawn; give it simulate(theta, rows)."
            )
        return (
            None if self.precision else "the prior of the weights is flat; set prior_variance of the model."
        )

    def draw_prior(self, count: int, key: int, *, strict: bool = False) -> Tensor:
        """Return independent draws from the prior (count, D), which depend on the key alone.

        Raises:
            Refusal: the prior is flat, whether `strict` or not.
        """
        if not self.precision:
            raise Refusal("the prior of the weights is flat; set prior_variance of the model.")
        generator = torch.Generator().manual_seed(derive_key(key, "prior") >> 1)
        return torch.randn(count, self.dim, dtype=torch.float64, generator=generator) / self.precision**0.5
