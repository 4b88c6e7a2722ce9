"""What a kernel is put together from: base classes, and what each part declares of itself.

A part derives from its base class and inherits the defaults of what it does not declare. What goes with what is decided
by these attributes alone, never by the name of a class.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from mhrun.native import NativeDecision, NativeDynamics, NativePairing, NativeProposal, NativeTest, Piece
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Contest, Controls, Difference, Evaluation, Info, State, Supply, Verdict

DIFFERENCE, SUPPLY = "difference", "supply"
"""What a pairing hands to a rule: a difference on a fixed batch, or a supply to draw data from."""


class Proposal(ABC):
    """Draws a candidate from q(origin -> candidate) and returns its log-density."""

    gradients: bool = False  # whether it needs the gradient at both points
    ratio: bool = True  # whether its densities, where they do not cancel, enter the acceptance ratio

    @property
    def needs_noise(self) -> bool:
        """Whether it has no meaning at a noise temperature of 0, which is the width of its density."""
        return self.gradients and self.ratio

    @abstractmethod
    def sample(self, origin: Evaluation, controls: Controls, draws: Draws) -> Tensor:
        """Return the proposed points (C, D)."""

    @abstractmethod
    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> Tensor | None:
        """Return log q(origin -> to) (C,), or None when it cancels because q is symmetric."""

    def native(self) -> NativeProposal | None:
        """Return the pieces of a compiled loop, or None."""
        return None


class Pairing(ABC):
    """Chooses the data on which the two points of an acceptance test are scored."""

    offers: str = DIFFERENCE  # what it hands to the rule: DIFFERENCE or SUPPLY
    m: int | None = None  # its minibatch size; None where it has no fixed one
    stationary: str | None = (
        None  # what chains sample with a rule that `keeps_ratio`: "tempered" or "stored", if known
    )
    rescores: bool = False  # whether each step scores the current point anew
    keeps_batch: bool = False  # whether a point keeps the minibatch that it was first scored on
    hands_batch_on: bool = (
        False  # whether the next step scores the current point on this candidate's minibatch
    )
    keeps_full_sums: bool = False  # whether the current point has its sum over all data

    @abstractmethod
    def refuses(self, target: Target) -> str | None:
        """Return why this pairing cannot work on the target, or None."""

    @abstractmethod
    def reads(self, target: Target) -> int:
        """Return how many data a decision reads at first, for plans and estimates."""

    @abstractmethod
    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Return the evaluation that the chains begin with."""

    @abstractmethod
    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Return the origin of this step, on the data that this step scores it on.

        `grad_temperature`: the temperature (C,) for which the proposal wants gradients, or None if it wants none.
        """

    @abstractmethod
    def compare(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        draws: Draws,
        grad_temperature: Tensor | None = None,
    ) -> tuple[Evaluation, Difference | Supply]:
        """Evaluate the candidate `theta`, and the difference between it and the origin or a supply of it."""

    def native(self) -> NativePairing | None:
        """Return what a compiled loop does in this pairing's place, or None."""
        return None


class Rule(ABC):
    """Accepts or rejects the candidate of a contest."""

    wants: str = DIFFERENCE  # what it decides by: DIFFERENCE, or SUPPLY if it draws the data that it needs
    keeps_ratio: bool = False  # whether it keeps detailed balance for the ratio that it is given
    min_batch: int = 1  # data of a minibatch that it needs to know the noise of the log-ratio
    corrects_noise: bool = (
        False  # whether it allows for minibatch noise; without it a run warns where that dominates
    )

    @property
    def wants_terms(self) -> bool:
        """Whether it draws the data that it needs from the contest's supply."""
        return self.wants == SUPPLY

    @property
    def skew_limit(self) -> float:
        """The `Verdict.log_ratio_skew` above which a run warns."""
        return math.inf

    @property
    def skew_remedy(self) -> str:
        """What that warning recommends."""
        return ""

    @abstractmethod
    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Decide every row."""

    def probability(self, log_ratio: Tensor) -> Tensor | None:
        """Return the probability to accept at log-ratios (C,), or None where they alone do not determine it."""
        return None

    def native(self) -> Piece | NativeDecision | None:
        """Return the piece ``threshold(u)``, accept iff it is below the log-ratio; or a deciding piece; or None."""
        return None

    def sequential(self, n: int) -> NativeTest | None:
        """Return the pieces of a test on a supply of n data, or None."""
        return None


class Dynamics(ABC):
    """Moves theta with no tractable density; may use `aux`."""

    energies: bool = (
        False  # whether it wants `aux["log_density"]` (C,), of the full-data posterior, estimated
    )
    marks_valid: bool = False  # whether `aux["valid"]` (C,) says at which steps theta is a draw

    @abstractmethod
    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return the first `aux`."""

    @abstractmethod
    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta (C, D) and aux; `grad` is that of the full-data log posterior, estimated."""

    def native(self) -> NativeDynamics | None:
        """Return the piece of a compiled loop, or None."""
        return None


class Kernel(ABC):
    """Moves all chains one step."""

    reversible: bool = False  # whether its stationary distribution is kept by detailed balance
    fitted: bool = False  # whether its draws are of something fitted to the target, however far from it
    adapts: bool = False  # whether it adapts without end, so that no stationary distribution is known
    rungs: int = 1  # of a ladder
    rule: Rule | None = None  # of its acceptance test
    pairing: Pairing | None = None  # of its acceptance test

    @property
    def decides(self) -> bool:
        """Whether a step ends in an acceptance test."""
        return False

    @property
    def needs_noise(self) -> bool:
        """Whether it has no meaning at a noise temperature of 0."""
        return False

    @property
    def is_sequential(self) -> bool:
        """Whether the data it reads in a step depend on how the test goes."""
        return False

    @property
    def stationary(self) -> dict[str, Any] | None:
        """The stationary distribution where its parts know one: ``distribution`` and ``m`` (None: all data)."""
        return None

    @property
    def of_a_chain(self) -> Kernel:
        """The kernel that moves one chain: itself, or that of a rung."""
        return self

    def extra(self, steps: int) -> tuple[int, int]:
        """Return how many steps' work comes with so many steps beside their own, at least and at most."""
        return 0, 0

    def stages(self) -> list[int]:
        """Return the steps from which on a step costs more, the first being 1."""
        return [1]

    def refuses_ladder(self) -> str | None:
        """Return why it cannot move the rungs of a ladder, whose exchanges know theta and the target alone, or None."""
        name = type(self).__name__
        if self.rungs > 1:
            return f"{name} is a ladder itself; choose a kernel that moves one chain for its rungs."
        if self.fitted:
            return f"{name} draws from what it fits, wherever the chains are; choose another kernel."
        return None

    @abstractmethod
    def reads(self, target: Target) -> int:
        """Return how many data a step of one chain reads, for plans and estimates."""

    @abstractmethod
    def refuses(self, target: Target) -> str | None:
        """Return why these parts and this target do not go together, or None."""

    @abstractmethod
    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Return the first state."""

    @abstractmethod
    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Return the next state and what happened."""
