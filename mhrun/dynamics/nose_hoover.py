"""The stochastic gradient Nose-Hoover thermostat."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.dynamics.refresh import checked, refresh, refreshed
from mhrun.errors import Refusal
from mhrun.native import NativeDynamics, piece
from mhrun.native.philox import NOISE, fill_normals
from mhrun.random import Draws, Purpose
from mhrun.types import Controls


class NoseHoover:
    """v' = (1 - s) v + e g + sqrt(2 a e T) z,  theta' = theta + v',  s' = s + (|v'|^2 / D - e T) / q.

    SGNHT (Ding et al. 2014, Algorithm 2), in step-scaled variables: v = p h, s = xi h, h^2 = e the step size;
    their A is a / h. The thermostat s, one number of a chain, rises when momenta are too hot: noise of variance V in
    the gradient is paid for without being known, with s about a + e V / 2 T. Momenta begin at 0, the thermostat at a.
    At T = 0 the thermostat stands still, and what is left is ascent with momentum. At a fixed friction s the variance
    of theta is s / 2 too small, relatively, however small the step: momenta have variance e T, and theta moves by them.

    Args:
        friction: a, in (0, 1].
        inertia: q; the thermostat's variance is e T / (D q) in the limit of small steps.
        refresh: steps after which momenta are drawn anew from N(0, e T); None for never.

    Raises:
        Refusal: a setting that has no meaning.
    """

    def __init__(self, friction: float = 0.1, inertia: float = 1.0, refresh: int | None = None) -> None:
        if not 0 < friction <= 1:
            raise Refusal(f"friction = {friction:g} must lie in (0, 1].")
        if not inertia > 0:
            raise Refusal(f"inertia = {inertia:g} must be positive.")
        self.friction = friction
        self.inertia = inertia
        self.refresh = checked(refresh)

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return momenta of zero (C, D) and thermostats at the friction (C,)."""
        return {
            "momentum": torch.zeros_like(theta),
            "thermostat": torch.full_like(theta[:, 0], self.friction),
        }

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta, momenta (C, D) and thermostats (C,)."""
        heat = controls.step_size * controls.noise_temperature
        momentum = refreshed(aux["momentum"], heat, self.refresh, draws)
        thermostat = aux["thermostat"]
        z = draws.normal(Purpose.NOISE, theta.shape[1], dtype=theta.dtype)
        momentum = (
            (1 - thermostat)[:, None] * momentum
            + controls.step_size[:, None] * grad
            + (2 * self.friction * heat).sqrt()[:, None] * z
        )
        change = (momentum.square().mean(-1) - heat) / self.inertia
        thermostat = torch.where(controls.noise_temperature > 0, thermostat + change, thermostat)
        return theta + momentum, {"momentum": momentum, "thermostat": thermostat}

    def native(self) -> NativeDynamics:
        """Return the piece of a fused loop."""
        return NativeDynamics(
            (self.friction, self.inertia, self.refresh), _move, ("momentum",), ("thermostat",)
        )


@piece
def _move(
    args: Any,
    theta: Any,
    grad: Any,
    aux: Any,
    own: Any,
    step_size: Any,
    temperature: Any,
    key: Any,
    step: Any,
    chain: Any,
) -> None:
    friction, inertia, every = args
    heat = step_size * temperature
    refresh(aux[0], math.sqrt(heat), every, step, chain, key)
    number = theta.dtype.type
    noise = number(math.sqrt(2 * friction * heat))
    keep, drift, momentum = number(1 - own[0]), number(step_size), aux[0]
    z = np.empty_like(theta)
    fill_normals(z, NOISE, step, chain, key)
    square = 0.0
    for d in range(len(theta)):
        momentum[d] = keep * momentum[d] + drift * grad[d] + noise * z[d]
        theta[d] += momentum[d]
        square += np.float64(momentum[d]) ** 2
    if temperature > 0:
        own[0] += (square / len(theta) - heat) / inertia
