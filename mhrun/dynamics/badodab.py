"""The Nose-Hoover thermostat by a symmetric splitting."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.dynamics.refresh import is_due, refresh, refreshed
from mhrun.dynamics.sgnht import SGNHT, each
from mhrun.native import NativeDynamics, piece
from mhrun.native.philox import NOISE, fill_normals
from mhrun.parts import Bias
from mhrun.random import Draws, Purpose
from mhrun.types import Controls


class Badodab(SGNHT):
    """The continuous dynamics of `SGNHT`, split as in Leimkuhler & Shang (2016), with one gradient per step.

        v += e g;  theta += v/2;  s += (|v|^2/D - e T) / 2q;
        v = exp(-s) v + sqrt(a e T (1 - exp(-2 s)) / s) z;
        s += (|v|^2/D - e T) / 2q;  theta += v/2.

    The half kick at the end of a step and the one at the beginning of the next are at the same theta and are combined.
    Refreshed momenta receive the second half only, v += e g / 2. theta does not have the bias s / 2 of the explicit
    scheme, and a negative s is harmless. The arguments are those of `SGNHT`.
    """

    @property
    def bias(self) -> Bias:  # type: ignore[override]
        """The friction leaves none. The shift of means is unknown; that of the explicit scheme is too large."""
        return super().bias._replace(means=None, in_small_steps=0.0)

    def largest_step(self, dim: int, temperature: float) -> float:
        """Return infinity: a thermostat that fluctuates does no harm."""
        return math.inf

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta, momenta (C, D) and thermostats (C,)."""
        variance = controls.step_size * controls.noise_temperature
        momentum = refreshed(aux["momentum"], variance, self.refresh, draws)
        s = aux["thermostat"]
        if not self.keep and draws.due(self.refresh):
            s = each(self.thermostat, theta)
        kick = controls.step_size
        if draws.due(self.refresh):  # the kick's first half went with the old momenta
            kick = torch.where(variance > 0, kick / 2, kick)
        momentum = momentum + kick[:, None] * grad
        theta = theta + momentum / 2
        warm = controls.noise_temperature > 0
        s = torch.where(warm, s + (momentum.square().mean(-1) - variance) / (2 * self.inertia), s)
        z = draws.normal(Purpose.NOISE, theta.shape[1], dtype=theta.dtype)
        share = torch.where(s == 0, 2.0, -torch.expm1(-2 * s) / torch.where(s == 0, 1.0, s))
        spread = (each(self.friction, theta) * variance * share).sqrt()
        momentum = torch.exp(-s)[:, None] * momentum + spread[:, None].to(theta.dtype) * z
        s = torch.where(warm, s + (momentum.square().mean(-1) - variance) / (2 * self.inertia), s)
        return theta + momentum / 2, {"momentum": momentum, "thermostat": s}

    def native(self) -> NativeDynamics:
        """Return the pieces of a compiled loop."""
        return super().native()._replace(move=_move)


@piece
def _move(args: Any, theta: Any, grad: Any, vectors: Any, scalars: Any, controls: Any, draw: Any) -> None:
    momentum, thermostat, (step_size, temperature) = vectors[0], scalars, controls
    frictions, inertia, every, starts, keep = args
    variance = step_size * temperature
    refresh(momentum, math.sqrt(variance), every, draw)
    fresh = is_due(every, draw)
    if not keep and fresh:
        thermostat[0] = starts[int(draw.chain) % len(starts)]
    number = theta.dtype.type
    half, drift = number(0.5), number(step_size)
    if fresh and variance > 0:  # the kick's first half went with the old momenta
        drift *= half
    square = 0.0
    for d in range(len(theta)):
        momentum[d] += drift * grad[d]
        theta[d] += half * momentum[d]
        square += np.float64(momentum[d]) ** 2
    if temperature > 0:
        thermostat[0] += (square / len(theta) - variance) / (2 * inertia)
    s = thermostat[0]
    share = 2.0 if s == 0.0 else -math.expm1(-2 * s) / s
    noise = number(math.sqrt(frictions[int(draw.chain) % len(frictions)] * variance * share))
    slower = number(math.exp(-s))
    z = np.empty_like(theta)
    fill_normals(z, NOISE, draw)
    square = 0.0
    for d in range(len(theta)):
        momentum[d] = slower * momentum[d] + noise * z[d]
        theta[d] += half * momentum[d]
        square += np.float64(momentum[d]) ** 2
    if temperature > 0:
        thermostat[0] += (square / len(theta) - variance) / (2 * inertia)
