"""Base classes of proposals."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeGradientProposal, NativeProposal, NativeTrajectory
from mhrun.random import Draws
from mhrun.types import Controls, Evaluation, Trajectory


class Proposal(ABC):
    """Draws a candidate from q(origin -> candidate) and returns its log-density."""

    gradients: bool = False  # whether it needs the gradient at both points
    ratio: bool = True  # whether its densities enter the acceptance ratio, unless they cancel
    # Whether these are the densities of its moves, so that the test is Metropolis-Hastings
    keeps_balance: bool = True
    # Most efficient acceptance rate for large D with Metropolis's rule; None: not declared. A pilot then assumes that
    # of a random walk, 0.234, or with gradients that of Langevin moves, 0.574, and its line names it.
    best_acceptance: float | None = None

    # Most efficient rate at D = 1, less `best_acceptance`; None: 0.207 without gradients, else 0
    excess_acceptance: float | None = None

    largest_step: float = math.inf  # above which a longer step is the same as this one

    follows: bool = False  # whether it is a `TrajectoryProposal`
    leapfrog_steps: int = 1  # gradients of a step; more than one along a trajectory
    leapfrog_is_open: bool = False  # whether a pilot chooses this number

    @property
    def needs_noise(self) -> bool:
        """Whether its density degenerates at a noise temperature of 0."""
        return self.gradients and self.ratio

    def first_step_size(self, dim: int) -> float:
        """Return a step size that suits a standard normal target of D = `dim`; a pilot tunes from there.

        2.38 / sqrt(D) is that of a random walk (Roberts, Gelman & Gilks 1997), 1.36 / D^(1/3) that of Langevin moves
        (Roberts & Rosenthal 1998).
        """
        return 1.36 * dim ** (-1 / 3) if self.gradients else 2.38 * dim**-0.5

    @abstractmethod
    def sample(self, origin: Evaluation, controls: Controls, draws: Draws) -> Tensor:
        """Return the proposed points (C, D)."""

    @abstractmethod
    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> Tensor | None:
        """Return log q(origin -> to) (C,), or None for a symmetric q, whose densities cancel."""

    def log_density_ratio(
        self, origin: Evaluation, candidate: Evaluation, controls: Controls
    ) -> Tensor | None:
        """Return log q(candidate -> origin) - log q(origin -> candidate) (C,), or None for a symmetric q."""
        if (forward := self.log_density(origin, candidate.theta, controls)) is None:
            return None
        backward = self.log_density(candidate, origin.theta, controls)
        assert backward is not None
        return backward - forward

    def native(self) -> NativeProposal | NativeGradientProposal | NativeTrajectory | None:
        """Return the pieces of a compiled loop, of the kind that fits (see docs/extending.md), or None."""
        return None


class TrajectoryProposal(Proposal):
    """Proposes the end of a trajectory: a map of (theta, momentum) that keeps volume and is its own inverse.

    It has no tractable density q. The acceptance test has the ratio of the momenta's densities in the place of
    q(theta' -> theta) / q(theta -> theta'). Both points, and the gradients between them, must be on the same data.
    """

    gradients = True
    follows = True

    def filled(self, leapfrog_steps: int) -> Self:
        """Return the proposal with this number of leapfrog steps, which a pilot has found."""
        proposal = copy.copy(self)
        proposal.leapfrog_steps, proposal.leapfrog_is_open = leapfrog_steps, False
        return proposal

    @abstractmethod
    def follow(
        self, origin: Evaluation, gradient: Callable[[Tensor], Tensor], controls: Controls, draws: Draws
    ) -> Trajectory:
        """Return the trajectory from the current point, with fresh momenta.

        `gradient` returns that of the full-data log posterior (C, D) at points (C, D), on the data of `origin`.
        """

    @abstractmethod
    def log_ratio(self, trajectory: Trajectory, candidate: Evaluation, controls: Controls) -> Tensor:
        """Return the log-ratio (C,) of the momenta's densities, that at the candidate over that at the origin."""

    def sample(self, origin: Evaluation, controls: Controls, draws: Draws) -> Tensor:
        """Refuse: a trajectory needs gradients on its way.

        Raises:
            Refusal: always.
        """
        raise Refusal(
            f"{type(self).__name__} follows a trajectory; it requires the kernel MetropolisHastings."
        )

    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> Tensor | None:
        """Refuse: it has no density; see `log_ratio`.

        Raises:
            Refusal: always.
        """
        raise Refusal(f"{type(self).__name__} has no density; it requires the kernel MetropolisHastings.")
