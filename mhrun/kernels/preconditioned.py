"""Proposals and dynamics in scaled coordinates: theta = center + S phi."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

from torch import Tensor

from mhrun.native import (
    NativeDynamics,
    NativeGradientProposal,
    NativeProposal,
    NativeTrajectory,
    native_form,
)
from mhrun.native.forms import symmetric
from mhrun.native.scaling import (
    scaled_follower,
    scaled_gradient_proposal,
    scaled_gradient_ratio,
    scaled_move,
    scaled_proposal,
    scaled_ratio,
    scaled_trajectory_ratio,
)
from mhrun.parts import Dynamics, Proposal, TrajectoryProposal
from mhrun.proposals.reversible_langevin import ReversibleLangevinProposal
from mhrun.random import Draws
from mhrun.types import Controls, Evaluation, Trajectory
from mhrun.types.scale import Scale

UNSCALED_NOISE = (
    "known_noise is a variance in the coordinates of theta, and scaled coordinates have another one in each direction; "
    "leave out precondition, or known_noise."
)


def _declare_as(part: Any, other: Any, base: type) -> None:
    """Give `other` the attributes that `base` declares, with the values of `part`."""
    for name in base.__annotations__:
        setattr(other, name, getattr(part, name))


class PreconditionedProposal(Proposal):
    """A proposal in scaled coordinates: phi' ~ q(phi -> .), theta' = center + S phi'.

    The Jacobian of the map is constant and cancels, so that the acceptance test has the densities of `proposal` at phi.

    Args:
        proposal: the proposal q.
        scale: center and S.
    """

    def __init__(self, proposal: Proposal, scale: Scale) -> None:
        self.proposal = proposal
        self.scale = scale
        _declare_as(proposal, self, Proposal)

    @property
    def needs_noise(self) -> bool:
        """Whether its density degenerates at a noise temperature of 0."""
        return self.proposal.needs_noise

    def first_step_size(self, dim: int) -> float:
        """Return a step size that suits a standard normal target, see `mhrun.parts.Proposal`."""
        return self.proposal.first_step_size(dim)

    def _scaled(self, point: Evaluation) -> Evaluation:
        grad = None if point.grad is None else self.scale.pull(point.grad)
        return point._replace(theta=self.scale.to_phi(point.theta), grad=grad)

    def sample(self, origin: Evaluation, controls: Controls, draws: Draws) -> Tensor:
        """Return the proposed points (C, D)."""
        return self.scale.to_theta(self.proposal.sample(self._scaled(origin), controls, draws))

    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> Tensor | None:
        """Return log q (C,) in scaled coordinates, or None for a symmetric q."""
        return self.proposal.log_density(self._scaled(origin), self.scale.to_phi(to), controls)

    def log_density_ratio(
        self, origin: Evaluation, candidate: Evaluation, controls: Controls
    ) -> Tensor | None:
        """Return the log-ratio (C,) of the densities in scaled coordinates, or None for a symmetric q."""
        return self.proposal.log_density_ratio(self._scaled(origin), self._scaled(candidate), controls)

    def native(self) -> NativeProposal | NativeGradientProposal | NativeTrajectory | None:
        """Return the pieces of a compiled loop, or None if the proposal has none."""
        form = native_form(self.proposal, "native", "sample", "log_density", "log_density_ratio")
        base: NativeProposal | NativeGradientProposal | None = form() if form is not None else None
        if base is None:
            return None
        dense, args = self.scale.dense, self.scale.native(base.args)
        if isinstance(base, NativeGradientProposal):
            propose = scaled_gradient_proposal(base.propose, dense)
            return NativeGradientProposal(args, propose, scaled_gradient_ratio(base.log_ratio, dense))
        ratio = base.log_ratio if base.log_ratio is symmetric else scaled_ratio(base.log_ratio, dense)
        return NativeProposal(args, scaled_proposal(base.propose, dense), ratio)


class PreconditionedBackward(PreconditionedProposal):
    """A reversible Langevin proposal in scaled coordinates, whose backward moves a kernel adapts.

    Args:
        proposal: draws moves forward and backward.
        scale: center and S.
    """

    proposal: ReversibleLangevinProposal

    def forward(self, draws: Draws) -> Tensor:
        """Return which chains move forward at this step, (C,) bool."""
        return self.proposal.forward(draws)

    def moved(self, origin: Evaluation, forward: Tensor, controls: Controls, draws: Draws) -> Tensor:
        """Return the points (C, D) after a forward move where `forward` (C,) is True, else a backward move."""
        return self.scale.to_theta(self.proposal.moved(self._scaled(origin), forward, controls, draws))


class PreconditionedTrajectory(PreconditionedProposal, TrajectoryProposal):
    """A trajectory in scaled coordinates, whose momenta are those of phi: a mass matrix of (S S^T)^-1.

    Args:
        proposal: follows the trajectory.
        scale: center and S.
    """

    proposal: TrajectoryProposal

    def filled(self, leapfrog_steps: int) -> Self:
        """Return the proposal with this number of leapfrog steps."""
        proposal = super().filled(leapfrog_steps)
        proposal.proposal = self.proposal.filled(leapfrog_steps)
        return proposal

    def follow(
        self, origin: Evaluation, gradient: Callable[[Tensor], Tensor], controls: Controls, draws: Draws
    ) -> Trajectory:
        """Return the trajectory; its end is theta (C, D), its momenta are those of phi."""

        def pulled(phi: Tensor) -> Tensor:
            return self.scale.pull(gradient(self.scale.to_theta(phi)))

        path = self.proposal.follow(self._scaled(origin), pulled, controls, draws)
        return path._replace(theta=self.scale.to_theta(path.theta))

    def log_ratio(self, trajectory: Trajectory, candidate: Evaluation, controls: Controls) -> Tensor:
        """Return the log-ratio (C,) of the momenta's densities."""
        return self.proposal.log_ratio(trajectory, self._scaled(candidate), controls)

    def native(self) -> NativeTrajectory | None:
        """Return the pieces of a compiled loop, or None if the proposal has none."""
        form = native_form(self.proposal, "native", "follow", "log_ratio")
        base: NativeTrajectory | None = form() if form is not None else None
        if base is None:
            return None
        dense = self.scale.dense
        return base._replace(
            args=self.scale.native(base.args),
            follower=scaled_follower(base.follower, dense),
            log_ratio=scaled_trajectory_ratio(base.log_ratio, dense),
        )


def class_name(dynamics: Dynamics) -> str:
    """Return the name of the class that a dynamics has without a scale, for messages."""
    return type(dynamics.dynamics if isinstance(dynamics, PreconditionedDynamics) else dynamics).__name__


class PreconditionedDynamics(Dynamics):
    """A dynamics in scaled coordinates: it moves phi by the gradient S^T g; momenta are those of phi.

    The stationary distribution for small steps is that of `dynamics`: a constant S S^T in place of the identity
    (Girolami & Calderhead 2011; Li et al. 2016, without the terms of a scale that depends on theta).

    Args:
        dynamics: the dynamics.
        scale: center and S.
    """

    def __init__(self, dynamics: Dynamics, scale: Scale) -> None:
        self.dynamics = dynamics
        self.scale = scale
        _declare_as(dynamics, self, Dynamics)

    @property
    def needs_noise(self) -> bool:
        """Whether the dynamics is undefined at a noise temperature of 0."""
        return self.dynamics.needs_noise

    def largest_step(self, dim: int, temperature: float) -> float:
        """Return that of the dynamics, which moves phi."""
        return self.dynamics.largest_step(dim, temperature)

    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return the initial `aux` of the dynamics."""
        return self.dynamics.start(self.scale.to_phi(theta), draws)

    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta (C, D) and aux."""
        phi, aux = self.dynamics.move(self.scale.to_phi(theta), self.scale.pull(grad), aux, controls, draws)
        return self.scale.to_theta(phi), aux

    def worth(self, shrink: Tensor) -> Tensor | None:
        """Return that of the dynamics; `shrink` is of the curvature in phi."""
        return self.dynamics.worth(shrink)

    def kinetic_temperature(self, aux: Mapping[str, Tensor], controls: Controls) -> Tensor | None:
        """Return that of the momenta of phi (C,); None if the dynamics has none that would show it."""
        return self.dynamics.kinetic_temperature(aux, controls)

    def native(self) -> NativeDynamics | None:
        """Return the piece of a compiled loop, or None if the dynamics has none."""
        form = native_form(self.dynamics, "native", "start", "move")
        base: NativeDynamics | None = form() if form is not None else None
        if base is None:
            return None
        args = self.scale.native(base.args)
        return base._replace(args=args, move=scaled_move(base.move, self.scale.dense))
