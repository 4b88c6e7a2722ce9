"""Stochastic gradient Barker dynamics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeDynamics, piece
from mhrun.native.maths import exp_negative_64
from mhrun.native.philox import NOISE, USE, fill_normals, fill_uniforms, u64
from mhrun.parts import Bias, Dynamics
from mhrun.random import Draws, Purpose
from mhrun.types import Controls

PROBIT = 1.702  # 1 / (1 + exp(-x)) = Phi(x / 1.702) up to 0.0095


class SGBD(Dynamics):
    """theta_d' = theta_d + b_d s z_d,  s^2 = 2 e T,  P(b_d = 1) = 1 / (1 + exp(-s z_d g_d / T)), else b_d = -1.

    (Mauri & Zanella 2024.) e is the step size, g the estimated gradient of the full-data log posterior, T the noise
    temperature, z ~ N(0, I). The gradient decides the direction of a step, never its length: a coordinate moves by
    |s z_d|, however large g_d is. As e -> 0 it agrees with SGLD of the same step size and samples the posterior to the
    power 1/T.

    Gradient noise of variance V draws the probability towards 1/2. With r = V s^2 z_d^2 / T^2, the variance of the
    log-odds l_d = s z_d g_d / T, the correction replaces l_d by 1.702 l_d / sqrt(1.702^2 - r), or by +-infinity where
    r >= 1.702^2. For normal noise, and with Phi(x / 1.702) for 1 / (1 + exp(-x)), the mean probability is then that of
    the exact gradient (their corrected version).

    Args:
        known_noise: V of every coordinate of theta, beside which a pilot finds no scale; 0 for no correction; None to
            estimate V for each coordinate, as the running mean of (g - previous g)^2 / 2. The estimate includes the
            change of the exact gradient in a step, which is small where minibatches are a small part of the data.
        decay: weight of the past in that running mean.

    Raises:
        Refusal: an invalid setting.
    """

    # From E tanh(s z g / 2T) with z normal: E z^4 = 3, and normal noise of g shrinks the log-odds by
    # sqrt(1 + pi r / 8). To first order in e noise adds 3/2 e V / T; 3 pi / 8 is closer at the 10 % of pilots.
    bias = Bias(noise=3 * math.pi / 4, steps=3.0)  # noise: without the correction, which lowers it

    def __init__(self, known_noise: float | None = 0.0, decay: float = 0.99) -> None:
        if known_noise is not None and not known_noise >= 0:
            raise Refusal(f"known_noise = {known_noise:g} is a variance; it must be at least 0.")
        if not 0 <= decay < 1:
            raise Refusal(f"decay = {decay:g} must lie in [0, 1).")
        self.known_noise = known_noise
        self.corrects_noise = known_noise != 0
        self.decay = decay

    @property
    def needs_noise(self) -> bool:
        """True: at a noise temperature of 0 the chain would not move."""
        return True

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return zeros: the previous gradient and the running mean (C, D), and the number of gradients seen (C,)."""
        if self.known_noise is not None:
            return {}
        gradients = theta.new_zeros(len(theta))
        return {
            "last_grad": torch.zeros_like(theta),
            "grad_var": torch.zeros_like(theta),
            "gradients": gradients,
        }

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta (C, D) and, if V is estimated, the next estimates."""
        dim, temperature = theta.shape[1], controls.noise_temperature[:, None]
        u = draws.uniforms(Purpose.NOISE, dim, use=2)
        size = (2 * controls.step_size[:, None] * temperature).sqrt()
        step = size * draws.normal(Purpose.NOISE, dim, dtype=theta.dtype)
        odds = step * grad / temperature
        if self.known_noise is None:
            # Estimated from earlier gradients only, so that its error is independent of this one's.
            var = aux["grad_var"] / self._weight(aux["gradients"])[:, None]
            odds = _corrected(odds, var * (step / temperature).square())
            aux = self._learn(grad, aux)
        elif self.known_noise > 0:
            odds = _corrected(odds, self.known_noise * (step / temperature).square())
        up = torch.sigmoid(odds)
        next_theta = theta + torch.where(u < up, step, -step)
        return torch.where(up.isnan(), torch.nan, next_theta), aux  # a gradient that is NaN stops the chain

    def _weight(self, gradients: Tensor) -> Tensor:
        """Return the total weight (C,) of the squares in the running mean after so many gradients; 1 before any."""
        return torch.where(gradients > 1, 1 - self.decay ** (gradients - 1), 1.0)

    def _learn(self, grad: Tensor, aux: dict[str, Tensor]) -> dict[str, Tensor]:
        square = (grad - aux["last_grad"]).square() / 2
        var = self.decay * aux["grad_var"] + (1 - self.decay) * square
        known = (aux["gradients"] > 0)[:, None]
        return {
            "last_grad": grad,
            "grad_var": torch.where(known, var, 0.0),
            "gradients": aux["gradients"] + 1,
        }

    def native(self) -> NativeDynamics:
        """Return the piece of a compiled loop."""
        if self.known_noise is None:
            return NativeDynamics(
                (float(self.decay),), _estimating, ("last_grad", "grad_var"), ("gradients",)
            )
        return NativeDynamics((float(self.known_noise),), _move)


def _corrected(odds: Tensor, var: Tensor) -> Tensor:
    """Return the log-odds for noisy log-odds, whose noise has the variance `var`."""
    var_left = PROBIT**2 - var
    scaled = PROBIT * odds / var_left.clamp_min(1e-30).sqrt()
    return torch.where((var_left > 0) | odds.isnan(), scaled, torch.where(odds > 0, math.inf, -math.inf))


@piece
def _shift(step: Any, odds: Any, var: Any, u: Any) -> Any:
    if odds != odds:
        return odds
    var_left = PROBIT**2 - var
    limit = np.inf if odds > 0 else -np.inf
    odds = PROBIT * odds / math.sqrt(max(var_left, 1e-30)) if var_left > 0 else limit
    tail = exp_negative_64(-abs(odds))
    up = 1.0 if odds >= 0 else tail
    return step if u * (1.0 + tail) < up else -step


@piece
def _move(args: Any, theta: Any, grad: Any, vectors: Any, scalars: Any, controls: Any, draw: Any) -> None:
    temperature = controls.noise_temperature
    size = math.sqrt(2 * controls.step_size * temperature)
    z, u = np.empty_like(theta), np.empty(len(theta))
    fill_normals(z, NOISE, draw)
    fill_uniforms(u, NOISE + u64(2) * USE, draw)
    for d in range(len(theta)):
        step = size * z[d]
        var = args[0] * (step / temperature) ** 2
        theta[d] += _shift(step, step * grad[d] / temperature, var, u[d])


@piece
def _estimating(
    args: Any, theta: Any, grad: Any, vectors: Any, scalars: Any, controls: Any, draw: Any
) -> None:
    decay, gradients, temperature = args[0], scalars[0], controls.noise_temperature
    last_grad, grad_var = vectors[0], vectors[1]
    size = math.sqrt(2 * controls.step_size * temperature)
    weight = 1 - decay ** (gradients - 1) if gradients > 1 else 1.0
    z, u = np.empty_like(theta), np.empty(len(theta))
    fill_normals(z, NOISE, draw)
    fill_uniforms(u, NOISE + u64(2) * USE, draw)
    for d in range(len(theta)):
        step = size * z[d]
        var = grad_var[d] / weight * (step / temperature) ** 2
        theta[d] += _shift(step, step * grad[d] / temperature, var, u[d])
        if gradients > 0:
            grad_var[d] = decay * grad_var[d] + (1 - decay) * (grad[d] - last_grad[d]) ** 2 / 2
        last_grad[d] = grad[d]
    scalars[0] = gradients + 1
