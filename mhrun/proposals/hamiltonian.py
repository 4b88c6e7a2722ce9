"""The proposal of Hamiltonian Monte Carlo."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import FollowedPath, NativeTrajectory, Piece, piece, piece_once
from mhrun.native.philox import PROPOSAL, USE, fill_normals, uniform
from mhrun.numbers import whole_number
from mhrun.parts import AUTO, TrajectoryProposal
from mhrun.random import Draws, Purpose
from mhrun.types import Controls, Evaluation, Trajectory

_OPEN = 10  # placeholder of a number of leapfrog steps that is not known yet


class HamiltonianProposal(TrajectoryProposal):
    """(theta, p) -> (theta', p') by L leapfrog steps of size e, from a fresh momentum p ~ N(0, tau I).

    p <- p + (e/2) g(theta), then L times: theta <- theta + e p and p <- p + e g(theta), the last p by e/2 only.

    g is the gradient of the full-data log posterior f at temperature 1 (see `mhrun.proposals.langevin`), and tau the
    noise temperature of the controls. The test's log-ratio is (f(theta') - f(theta)) / T + (|p|^2 - |p'|^2) / 2 tau.
    With tau = T it is minus the change of H = -f(theta) + |p|^2 / 2, divided by T. L = 1 is a Langevin move of step
    size e^2 / 2. Duane, Kennedy, Pendleton & Roweth (1987); Neal (2011).

    Each trajectory of each chain has its own step size, uniform within e (1 +- jitter): trajectories of one length
    would return to where they began, wherever their length is a period of the target.

    Args:
        leapfrog_steps: L, the gradients of a step; "auto": a pilot finds a trajectory of a quarter of a period of the
            scaled target.
        jitter: largest relative change of the step size, at least 0 and below 1.

    Raises:
        Refusal: an invalid setting.
    """

    best_acceptance = 0.8  # 0.6 to 0.9 cost about the same (Betancourt, Byrne & Girolami 2014)

    def __init__(self, leapfrog_steps: int | str = AUTO, jitter: float = 0.2) -> None:
        if leapfrog_steps == AUTO:
            self.leapfrog_is_open = True
            leapfrog_steps = _OPEN
        leapfrog_steps = whole_number("leapfrog_steps", leapfrog_steps, least=1, other=AUTO)
        if not 0 <= jitter < 1:
            raise Refusal(f"jitter = {jitter:g} must be at least 0 and below 1.")
        self.leapfrog_steps = leapfrog_steps
        self.jitter = jitter

    def first_step_size(self, dim: int) -> float:
        """Return 1.2 / D^(1/4): the power is that of Beskos et al. (2013)."""
        return 1.2 * dim**-0.25

    def follow(
        self, origin: Evaluation, gradient: Callable[[Tensor], Tensor], controls: Controls, draws: Draws
    ) -> Trajectory:
        """Return the trajectory from the current point, with fresh momenta.

        A chain whose trajectory leaves the finite numbers stays at its last finite point, with a momentum of NaN: its
        candidate is rejected.
        """
        assert origin.grad is not None
        theta = origin.theta
        size = controls.step_size
        if self.jitter:
            u = draws.uniform(Purpose.PROPOSAL, use=1)
            size = size * (1 + self.jitter * (2 * u - 1)).to(size)
        e = size[:, None].to(theta.dtype)
        z = draws.normal(Purpose.PROPOSAL, theta.shape[1], dtype=theta.dtype)
        first = controls.noise_temperature.sqrt()[:, None].to(theta.dtype) * z
        momentum = first + 0.5 * e * origin.grad
        for k in range(self.leapfrog_steps):
            next_theta = theta + e * momentum
            finite = next_theta.isfinite().all(-1, keepdim=True)
            theta = torch.where(finite, next_theta, theta)
            momentum = torch.where(finite, momentum, torch.nan)
            if k < self.leapfrog_steps - 1:
                momentum = momentum + e * gradient(theta)
        return Trajectory(theta, first, momentum, size)

    def log_ratio(self, trajectory: Trajectory, candidate: Evaluation, controls: Controls) -> Tensor:
        """Return (|p|^2 - |p'|^2) / 2 tau (C,), float64."""
        assert candidate.grad is not None
        half = 0.5 * trajectory.step_size[:, None].to(trajectory.last.dtype)
        last = trajectory.last + half * candidate.grad
        gain = trajectory.first.double().square().sum(-1) - last.double().square().sum(-1)
        return gain / (2 * controls.noise_temperature.double())

    def native(self) -> NativeTrajectory:
        """Return the pieces of a compiled loop."""
        args = (self.leapfrog_steps, self.jitter)
        return NativeTrajectory(args, _follower, _log_ratio, self.leapfrog_steps - 1)


def _follower(gradient: Piece) -> Piece:
    return piece_once(_following, gradient)


def _following(gradient: Piece) -> Piece:
    def follow(
        args: Any, data: Any, origin: Any, grad: Any, controls: Any, draw: Any, out: Any, momenta: Any
    ) -> Any:
        leapfrog_steps, jitter = args
        first, last = momenta[0], momenta[1]
        dim, size = len(origin), controls.step_size
        if jitter > 0:
            size *= 1 + jitter * (2 * uniform(PROPOSAL + USE, draw) - 1)
        fill_normals(first, PROPOSAL, draw)
        spread = np.sqrt(controls.noise_temperature)
        for d in range(dim):
            first[d] *= spread
            last[d] = first[d] + 0.5 * size * grad[d]
            out[d] = origin[d]
        there = np.empty_like(origin)  # the next point, then the gradient at it
        for k in range(leapfrog_steps):
            finite = True
            for d in range(dim):
                there[d] = out[d] + size * last[d]
                finite = finite and math.isfinite(there[d])
            if not finite:
                for d in range(dim):
                    last[d] = np.nan
                break
            for d in range(dim):
                out[d] = there[d]
            if k < leapfrog_steps - 1:
                gradient(data, out, there)
                for d in range(dim):
                    last[d] += size * there[d]
        return FollowedPath(momenta, size)

    return follow


@piece
def _log_ratio(args: Any, path: Any, grad: Any, controls: Any) -> Any:
    first, last, gain = path.momenta[0], path.momenta[1], 0.0
    for d in range(len(first)):
        end = last[d] + 0.5 * path.step_size * grad[d]
        gain += first[d] * first[d] - end * end
    return gain / (2 * controls.noise_temperature)
