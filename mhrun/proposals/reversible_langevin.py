"""The reversible Langevin proposal (RSGLD)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal, check_choice
from mhrun.native import NativeGradientProposal, native_form, piece
from mhrun.native.philox import PROPOSAL, USE, fill_normals, uniform
from mhrun.native.vectors import gap_squares, moved
from mhrun.parts import Proposal
from mhrun.random import Draws, Purpose
from mhrun.types import Controls, Evaluation

_DENSITIES = ("normalised", "unnormalised")


class ReversibleLangevinProposal(Proposal):
    """Forward and backward Langevin moves, each with probability 1/2 (Wu, Wang & Wong 2020, eq. 6 and 7).

    Forward: theta + e g + s z; backward: theta - e g + beta s z, with s = sqrt(2 e tau); g, e and tau as in
    `mhrun.proposals.langevin.LangevinProposal`. The proposal density is that of the mixture, so that a backward move
    can reverse a forward one.

    Most efficient acceptance rate: 0.287 + 0.2 / D. For large D it is half of MALA's 0.574, because at its step sizes
    hardly any backward move is accepted. At small D backward moves are accepted too. On N(0, I) the mean has the
    largest effective sample size at 0.49 for D = 1, 0.40 for D = 2 and 0.33 for D = 5; tuned to 0.287 at D = 1, it has
    half of that, and the square a quarter.

    Args:
        beta: relative width of backward moves, at least 1; a kernel may adapt it (`controls.backward`).
        density: ``normalised``, as in equation 7; or ``unnormalised``, without the factor beta^-D of the backward part,
            as in Proposition 1 and the RSGLD code. The stationary distribution is then unknown.

    Raises:
        Refusal: an invalid setting.
    """

    gradients = True
    best_acceptance = 0.287
    excess_acceptance = 0.2  # measured, see above

    def __init__(
        self, beta: float = 1.0, density: Literal["normalised", "unnormalised"] = "normalised"
    ) -> None:
        if not beta >= 1:
            raise Refusal(f"beta = {beta:g} must be at least 1.")
        check_choice("density", density, _DENSITIES)
        self.beta = beta
        self.density = density
        self.keeps_balance = density == "normalised" or beta == 1

    def sample(self, origin: Evaluation, controls: Controls, draws: Draws) -> Tensor:
        """Return the proposed points (C, D)."""
        return self.moved(origin, self.forward(draws), controls, draws)

    def forward(self, draws: Draws) -> Tensor:
        """Return which chains move forward at this step, (C,) bool."""
        return draws.uniform(Purpose.PROPOSAL, use=1) < 0.5

    def moved(self, origin: Evaluation, forward: Tensor, controls: Controls, draws: Draws) -> Tensor:
        """Return the points (C, D) after a forward move where `forward` (C,) is True, else a backward move."""
        assert origin.grad is not None
        z = draws.normal(Purpose.PROPOSAL, origin.theta.shape[1], dtype=origin.theta.dtype)
        spread = (2 * controls.step_size * controls.noise_temperature).sqrt()
        drift = torch.where(forward, controls.step_size, -controls.step_size)
        spread = torch.where(forward, spread, self._beta(controls) * spread)
        return moved(origin.theta, origin.grad, z, drift, spread)

    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> Tensor:
        """Return log q(origin -> to) (C,), up to a constant common to both directions."""
        assert origin.grad is not None
        scale = (4 * controls.step_size * controls.noise_temperature).double()
        beta = self._beta(controls).double()
        forward = -gap_squares(to, origin.theta, origin.grad, controls.step_size) / scale
        backward = -gap_squares(to, origin.theta, origin.grad, -controls.step_size) / (scale * beta.square())
        if self.density == "normalised":
            backward = backward - to.shape[1] * beta.log()
        return torch.logaddexp(forward, backward) - math.log(2)

    def native(self) -> NativeGradientProposal | None:
        """Return the pieces of a compiled loop, with a constant `beta`; None if a subclass changes a part of a move."""
        if native_form(self, "native", "forward", "moved", "_beta") is None:
            return None
        normalised = self.density == "normalised"
        return NativeGradientProposal((self.beta, normalised), _propose, _log_ratio)

    def _beta(self, controls: Controls) -> Tensor:
        """Return the relative width of backward moves (C,): the adapted value if a kernel adapts it, else `beta`."""
        return (
            torch.full_like(controls.step_size, self.beta) if controls.backward is None else controls.backward
        )


@piece
def _propose(args: Any, origin: Any, grad: Any, controls: Any, draw: Any, out: Any) -> None:
    drift, spread = controls.step_size, np.sqrt(2 * controls.step_size * controls.noise_temperature)
    if uniform(PROPOSAL + USE, draw) >= 0.5:
        drift, spread = -drift, args[0] * spread
    fill_normals(out, PROPOSAL, draw)
    for d in range(len(origin)):
        out[d] = origin[d] + drift * grad[d] + spread * out[d]


@piece
def _log_density(args: Any, origin: Any, to: Any, grad: Any, controls: Any) -> Any:
    ahead, back = 0.0, 0.0
    for d in range(len(origin)):
        step, drift = to[d] - origin[d], controls.step_size * grad[d]
        ahead += (step - drift) ** 2
        back += (step + drift) ** 2
    beta, scale = args[0], 4 * controls.step_size * controls.noise_temperature
    forward, backward = -ahead / scale, -back / (scale * beta * beta)
    if args[1]:
        backward -= len(origin) * np.log(beta)
    high, low = max(forward, backward), min(forward, backward)
    return high + np.log1p(np.exp(low - high)) if high > -np.inf else high


@piece
def _log_ratio(args: Any, origin: Any, candidate: Any, here: Any, there: Any, controls: Any) -> Any:
    reverse = _log_density(args, candidate, origin, there, controls)
    return reverse - _log_density(args, origin, candidate, here, controls)
