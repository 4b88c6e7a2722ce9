"""The base class of kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.parts.dynamics import Dynamics
from mhrun.parts.pairing import Pairing
from mhrun.parts.proposal import Proposal
from mhrun.parts.rule import Rule
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Controls, Info, State
from mhrun.types.scale import Scale


class Kernel(ABC):
    """Moves all chains by one step."""

    # Whether it satisfies detailed balance with its stationary distribution; `mhrun check` then tests it
    reversible: bool = False
    optimises: bool = False  # whether its steps have no noise: an optimiser
    fitted: bool = False  # whether it draws from an approximation fitted to the target
    adapts: bool = False  # whether adaptation never ends, so that the stationary distribution is unknown
    keeps_buffers: bool = False  # whether it keeps a module's buffers with theta (BatchNorm in training mode)
    rungs: int = 1  # number of rungs of a ladder
    # Steps between two exchanges of a ladder's neighbours; None: there are none
    exchange_every: int | None = None
    m_is_open: bool = False  # whether a pilot chooses the minibatch size of its gradients
    rule: Rule | None = None  # the rule of its acceptance test, if it is made of parts
    pairing: Pairing | None = None  # the pairing of its acceptance test, if it has one
    proposal: Proposal | None = (
        None  # the proposal whose candidates the test accepts or rejects, if it has one
    )
    dynamics: Dynamics | None = None  # the dynamics of a kernel without a test

    @property
    def follows(self) -> bool:
        """Whether its candidates are the ends of trajectories."""
        return self.proposal is not None and self.proposal.follows

    @property
    def takes_gradients(self) -> bool:
        """Whether its moves are made with gradients of the log-likelihood."""
        return self.dynamics is not None or (self.proposal is not None and self.proposal.gradients)

    @property
    def decides(self) -> bool:
        """Whether a step ends in an acceptance test."""
        return False

    @property
    def needs_noise(self) -> bool:
        """Whether it is undefined at a noise temperature of 0."""
        return False

    @property
    def is_sequential(self) -> bool:
        """Whether the number of data read in a step depends on the outcome of a sequential test."""
        return False

    @property
    def stationary(self) -> dict[str, Any] | None:
        """The stationary distribution as ``distribution`` (``tempered``: the target) and ``m`` (None: all data).

        None: it is unknown, and reports call the kernel approximate.
        """
        return None

    @property
    def of_a_chain(self) -> Kernel:
        """The kernel that moves one chain: itself, or the kernel of a rung."""
        return self

    def extra(self, steps: int) -> tuple[int, int]:
        """Return the least and the most extra work in `steps` steps, in units of one step."""
        return 0, 0

    def steps_until_extra(self, step: int) -> int | None:
        """Return how many steps from `step` (from 1) on have no extra work, or None if there is never any."""
        return None

    def stages(self) -> list[int]:
        """Return the step numbers (from 1) at which the cost of a step increases."""
        return [1]

    def refuses_ladder(self) -> str | None:
        """Return why it cannot move the rungs of a ladder, or None. Exchanges use theta and the target only."""
        name = type(self).__name__
        if self.rungs > 1:
            return f"{name} is a ladder itself; choose a kernel that moves one chain for its rungs."
        if self.fitted:
            return f"{name} draws from a fitted approximation and ignores exchanges; choose another kernel."
        return None

    def separate_gradients(self) -> float:
        """Return the share of `Info.n_grad` from passes that add nothing to `Info.n_lik`, 0 to 1.

        A datum's log-likelihood and gradient from one pass are one evaluation in reports: there are
        n_lik + separate_gradients n_grad of them. 1 is right if gradients and log-likelihoods are evaluated apart, or
        only one of them is. Return 0 if every gradient comes with a log-likelihood that `Info.n_lik` counts, as those
        of `Target.evaluate_full` and `Target.evaluate` do; a share between for a trajectory, whose gradients on the way
        come alone. The default never counts too few; `mhrun check` says which share the counts need.
        """
        return 1.0

    @property
    def pass_size(self) -> int | None:
        """How many data of a pass over all data a step reads: after n // pass_size steps labels are permuted anew.

        None: as many as each minibatch that it draws has. See `mhrun.data.transforms.Transforms`.
        """
        return None

    # ------------------------------------------------------------------------------ with what a pilot finds

    def for_pilot(self) -> Kernel:
        """Return the kernel with which a pilot moves chains: this one, or one without its adaptation."""
        return self

    def with_m(self, m: int) -> Self:
        """Return a copy with this minibatch size.

        Raises:
            Refusal: a kernel without one.
        """
        raise Refusal(
            f"{type(self).__name__} has no minibatch size that a pilot finds; give a number, not auto."
        )

    def with_leapfrog_steps(self, count: int) -> Self:
        """Return a copy whose trajectories have this number of leapfrog steps.

        Raises:
            Refusal: a kernel without trajectories.
        """
        raise Refusal(f"{type(self).__name__} has no trajectories; leave out leapfrog_steps.")

    def with_scale(self, scale: Scale) -> Self:
        """Return a copy that moves in scaled coordinates.

        Raises:
            Refusal: a kernel that cannot.
        """
        raise Refusal(
            f"{type(self).__name__} cannot be preconditioned; choose MetropolisHastings or Unadjusted."
        )

    def with_kernel_of_a_chain(self, kernel: Kernel) -> Kernel:
        """Return the kernel with another `of_a_chain`: `kernel` itself, or a ladder of it."""
        return kernel

    # ------------------------------------------------------------------------------------------------ steps

    @abstractmethod
    def reads(self, target: Target) -> int:
        """Return how many data a step of one chain reads, for plans and cost estimates."""

    @abstractmethod
    def refuses(self, target: Target) -> str | None:
        """Return why these parts and this target are incompatible, or None."""

    def rounds(self, target: Target) -> int:
        """Return how many times over a step in torch does its operations, for cost estimates."""
        return 1

    @abstractmethod
    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Return the initial state at theta (C, D)."""

    @abstractmethod
    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Return the next state and the step's `Info`."""
