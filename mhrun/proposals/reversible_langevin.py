"""The reversible Langevin proposal (RSGLD)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.random import Draws, Purpose
from mhrun.types import Controls, Evaluation

_DENSITIES = ("normalised", "unnormalised")


class ReversibleLangevin:
    """Forward and backward Langevin moves, each with probability 1/2 (Wu, Wang & Wong 2020, eq. 6 and 7).

    Forward: theta + e g + s z; backward: theta - e g + beta s z, with s = sqrt(2 e tau); g, e and tau as in
    `mhrun.proposals.langevin.Langevin`. The density is that of the mixture, so that a forward move can be undone by
    a backward one.

    Args:
        beta: how much wider the backward moves are, at least 1.
        density: ``normalised``, as equation 7 has it; or ``unnormalised``, without the factor beta^-D of the
            backward part, as Proposition 1 and the authors' code have it: then no law is known that the chain has.

    Raises:
        Refusal: a setting that has no meaning.
    """

    gradients = True

    def __init__(self, beta: float = 1.0, density: str = "normalised") -> None:
        if not beta >= 1:
            raise Refusal(f"beta = {beta:g} must be at least 1.")
        if density not in _DENSITIES:
            raise Refusal(f"density = '{density}' is unknown; choose {', '.join(_DENSITIES)}.")
        self.beta = beta
        self.density = density

    def sample(self, origin: Evaluation, controls: Controls, draws: Draws) -> Tensor:
        """Return the proposed points (C, D)."""
        assert origin.grad is not None
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1]).to(origin.theta.dtype)
        forward = (draws.uniform(Purpose.PROPOSAL, use=1) < 0.5)[:, None]
        step = controls.step_size[:, None]
        spread = (2 * step * controls.noise_temperature[:, None]).sqrt()
        drift = step * origin.grad
        return origin.theta + torch.where(forward, drift + spread * z, self.beta * spread * z - drift)

    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> Tensor:
        """Return log q(origin -> to) (C,), without the constant that both directions share."""
        assert origin.grad is not None
        moved, drift = (to - origin.theta).double(), (controls.step_size[:, None] * origin.grad).double()
        scale = (4 * controls.step_size * controls.noise_temperature).double()
        forward = -(moved - drift).square().sum(-1) / scale
        backward = -(moved + drift).square().sum(-1) / (scale * self.beta**2)
        if self.density == "normalised":
            backward = backward - moved.shape[1] * math.log(self.beta)
        return torch.logaddexp(forward, backward) - math.log(2)

    def native(self) -> None:
        """Return None: there is no piece with gradients."""
        return
