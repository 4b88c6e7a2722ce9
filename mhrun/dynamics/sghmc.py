"""Stochastic gradient Hamiltonian Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.dynamics.refresh import checked, refresh, refreshed, temperature_of_theta
from mhrun.errors import Refusal
from mhrun.native import NativeDynamics, piece
from mhrun.native.philox import NOISE, fill_normals
from mhrun.parts import Bias, Dynamics
from mhrun.random import Draws, Purpose
from mhrun.types import Controls


class SGHMC(Dynamics):
    """v' = (1 - a) v + e g + sqrt(2 e (a - b) T) z,  theta' = theta + v'  (Chen, Fox & Guestrin 2014, eq. 15).

    e is the step size (their eta), g the estimated gradient of the full-data log posterior, T the noise temperature.
    Momenta start at zero. Let V be the variance of the gradient noise. In the limit of small e, a and e V / a the
    momenta have the variance e T. Gradient noise adds e V / 2 a to T, unless b compensates for it.

    Args:
        friction: a, in (0, 1].
        noise_estimate: b, the part of the friction that compensates for gradient noise.
        refresh: momenta are redrawn from N(0, e T) at steps 1, 1 + refresh, ..., which makes theta too narrow; None:
            never, momenta start at 0.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self, friction: float = 0.1, noise_estimate: float = 0.0, refresh: int | None = None
    ) -> None:
        if not 0 < friction <= 1:
            raise Refusal(f"friction = {friction:g} must lie in (0, 1].")
        if not 0 <= noise_estimate <= friction:
            raise Refusal(
                f"noise_estimate = {noise_estimate:g} must lie between 0 and the friction {friction:g}."
            )
        self.friction = friction
        self.noise_estimate = noise_estimate
        self.corrects_noise = noise_estimate > 0
        self.refresh = checked(refresh)

    @property
    def bias(self) -> Bias:  # type: ignore[override]
        """Gradient noise adds e V / 2 a to T. At curvature H the variance has 1 / (2 - a) times the excess of SGLD.

        Momenta that are drawn anew make it too small, see `temperature_of_theta`.
        """
        return Bias(
            noise=1 / self.friction,
            means=1 / (2 - self.friction),
            in_small_steps=temperature_of_theta(self.friction, self.friction, self.refresh) - 1,
        )

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return zero momenta (C, D)."""
        return {"momentum": torch.zeros_like(theta)}

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta and momenta (C, D)."""
        variance = controls.step_size * controls.noise_temperature
        momentum = refreshed(aux["momentum"], variance, self.refresh, draws)
        z = draws.normal(Purpose.NOISE, theta.shape[1], dtype=theta.dtype)
        spread = 2 * (self.friction - self.noise_estimate) * variance
        momentum = (
            (1 - self.friction) * momentum + controls.step_size[:, None] * grad + spread.sqrt()[:, None] * z
        )
        return theta + momentum, {"momentum": momentum}

    def kinetic_temperature(self, aux: Mapping[str, Tensor], controls: Controls) -> Tensor:
        """Return (1 - a/2) |v|^2 / (D e), (C,): momenta have the variance e T / (1 - a/2) where all forces are 0."""
        return (1 - self.friction / 2) * aux["momentum"].square().mean(-1) / controls.step_size

    def worth(self, shrink: Tensor) -> Tensor | None:
        """Return that of a second-order autoregression: x (2 - a) / (a (4 - 2 a - x)) with x = e h.

        theta_t+1 = (2 - a - x) theta_t - (1 - a) theta_t-1 + noise. None where momenta are drawn anew, and of a
        subclass that moves otherwise.
        """
        if self.refresh or type(self).move is not SGHMC.move:
            return None
        return shrink * (2 - self.friction) / (self.friction * (4 - 2 * self.friction - shrink))

    def native(self) -> NativeDynamics:
        """Return the pieces of a compiled loop."""
        return NativeDynamics((self.friction, self.noise_estimate, self.refresh), _move, ("momentum",))


@piece
def _move(args: Any, theta: Any, grad: Any, vectors: Any, scalars: Any, controls: Any, draw: Any) -> None:
    momentum, (step_size, temperature) = vectors[0], controls
    friction, estimate, every = args
    refresh(momentum, math.sqrt(step_size * temperature), every, draw)
    number = theta.dtype.type
    noise = number(math.sqrt(2 * step_size * (friction - estimate) * temperature))
    keep, drift = number(1 - friction), number(step_size)
    z = np.empty_like(theta)
    fill_normals(z, NOISE, draw)
    for d in range(len(theta)):
        momentum[d] = keep * momentum[d] + drift * grad[d] + noise * z[d]
        theta[d] += momentum[d]
