"""The base class of dynamics."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from mhrun.native import NativeDynamics
from mhrun.random import Draws
from mhrun.types import Controls


class Bias(NamedTuple):
    """By how much the stationary distribution of a dynamics is off at step size e, to first order in e.

    Pilots choose step sizes by it, and warnings estimate from it how wrong draws are. With H the curvature of the log
    posterior, V the variance of gradient noise and T the temperature, the variance of theta is off by the relative
    amount of at most

        in_small_steps + e (steps H + noise V / T) / 2.

    Attributes:
        noise: 1 of SGLD, 1/a of SGHMC with friction a; None: unknown, or an optimiser.
        steps: 1 of SGLD.
        means: by how many times as much as those of SGLD steps shift the means of parameters that govern many others,
            see `mhrun.engine.diagnosis.mean_bias`; None: unknown.
        in_small_steps: error that remains as e goes to 0, as of a thermostat. If `means` is known, it is one of the
            temperature.
        thermostat: whether a thermostat holds the kinetic energy, and so cancels in the temperature the mean over
            coordinates of what steps add.
    """

    noise: float | None = None
    steps: float = 1.0
    means: float | None = None
    in_small_steps: float = 0.0
    thermostat: bool = False


class Dynamics(ABC):
    """A transition of theta without a tractable density; auxiliary variables are in `aux`."""

    # Whether it needs `aux["log_density"]` (C,), the estimated full-data log posterior
    energies: bool = False
    bias: Bias = Bias()  # of its stationary distribution
    corrects_noise: bool = False  # whether it subtracts known gradient noise from the noise that it adds
    # The variance of gradient noise, of each coordinate of theta, for which it corrects; None: it estimates it
    known_noise: float | None = 0.0
    # Whether a step of size e in a direction of curvature h shrinks a deviation from the mode by the factor 1 - e h
    overdamped: bool = False
    optimises: bool = False  # whether it adds no noise at any temperature: an optimiser
    marks_valid: bool = False  # whether `aux["valid"]` (C,) marks the steps at which theta is a draw
    valid_remedy: str = "Raise steps."  # the advice if few steps are
    stable_remedy: str = ""  # the advice if chains became non-finite, besides shorter steps: "lower ..."

    @property
    def needs_noise(self) -> bool:
        """Whether it is undefined at a noise temperature of 0; such schedules are then refused."""
        return self.energies

    @abstractmethod
    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return the initial `aux`."""

    @abstractmethod
    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta (C, D) and aux; `grad` (C, D) estimates the full-data log-posterior gradient."""

    def largest_step(self, dim: int, temperature: float) -> float:
        """Return the largest step size that is stable at any curvature, an upper limit for pilots. 0: none is.

        Args:
            dim: number of coordinates.
            temperature: of the noise.
        """
        return math.inf

    def kinetic_temperature(self, aux: Mapping[str, Tensor], controls: Controls) -> Tensor | None:
        """Return the temperature (C,) that the momenta in `aux` have; None without momenta that would show it.

        In small steps and without gradient noise its mean is that of the noise, `controls.noise_temperature`.
        """
        return None

    def worth(self, shrink: Tensor) -> Tensor | None:
        """Return how many independent draws one draw is worth on a normal target, in directions with e h = `shrink`.

        h is the curvature and e the step size. It is one over the integrated autocorrelation time of theta: of an
        autoregression with the coefficient r = 1 - e h it is (1 - r) / (1 + r). None: unknown.
        """
        return shrink / (2 - shrink) if self.overdamped else None

    def native(self) -> NativeDynamics | None:
        """Return the piece of a compiled loop, or None."""
        return None
