"""Stochastic gradient Langevin dynamics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeDynamics, piece
from mhrun.native.philox import NOISE, fill_normals
from mhrun.parts import Bias, Dynamics
from mhrun.random import Draws, Purpose
from mhrun.types import Controls


class SGLD(Dynamics):
    """theta' = theta + e g + sqrt(2 e T) z  (Welling & Teh 2011, with e = their epsilon / 2).

    e is the step size, g the estimated gradient of the full-data log posterior, T the noise temperature. As e -> 0 it
    samples the posterior to the power 1/T. At a fixed e, gradient noise of covariance V adds e V / 2 to T. T = 0 is
    stochastic gradient ascent.

    Args:
        known_noise: the variance V of the gradient noise, if it is known and isotropic. The injected noise then has the
            variance 2 e T - e^2 V (the code of Zhang et al. 2020), or 0 if that is negative. V is a variance in the
            coordinates of theta: a pilot finds no scale beside it.

    Raises:
        Refusal: a negative variance.
    """

    bias = Bias(noise=1.0, means=1.0)
    overdamped = True

    def __init__(self, known_noise: float = 0.0) -> None:
        if not known_noise >= 0:
            raise Refusal(f"known_noise = {known_noise:g} is a variance; it must be at least 0.")
        self.known_noise = known_noise
        self.corrects_noise = known_noise > 0

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return an empty dictionary: there are no auxiliary variables."""
        return {}

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta (C, D)."""
        z = draws.normal(Purpose.NOISE, theta.shape[1], dtype=theta.dtype)
        size = controls.step_size
        noise = (
            size * (2 * controls.noise_temperature - size * (self.known_noise or 0.0)).clamp_min(0.0)
        ).sqrt()
        return theta + controls.step_size[:, None] * grad + noise[:, None] * z, aux

    def native(self) -> NativeDynamics:
        """Return the piece of a compiled loop."""
        return NativeDynamics((float(self.known_noise or 0.0),), _move)


@piece
def _move(args: Any, theta: Any, grad: Any, vectors: Any, scalars: Any, controls: Any, draw: Any) -> None:
    step_size = controls.step_size
    number = theta.dtype.type
    noise = number(math.sqrt(step_size * max(0.0, 2 * controls.noise_temperature - step_size * args[0])))
    drift = number(step_size)
    z = np.empty_like(theta)
    fill_normals(z, NOISE, draw)
    for d in range(len(theta)):
        theta[d] += drift * grad[d] + noise * z[d]
