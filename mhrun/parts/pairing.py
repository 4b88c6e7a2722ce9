"""The base class of pairings."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from mhrun.native import NativePairing
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Arrivals, Difference, Evaluation, Supply

DIFFERENCE, SUPPLY, ARRIVALS, ESTIMATES = "difference", "supply", "arrivals", "estimates"
"""What a pairing passes to a rule: a `Difference` on a fixed batch, a `Supply` of terms to draw from, `Arrivals` at
data whose terms are bounded, or a `Difference` of two estimates that are kept with their points."""


class Pairing(ABC):
    """Chooses the data on which the two points of an acceptance test are evaluated."""

    offers: str = DIFFERENCE  # what it passes to the rule: DIFFERENCE, SUPPLY, ARRIVALS or ESTIMATES
    m: int | None = None  # its minibatch size; None if it has no fixed one
    m_is_open: bool = False  # whether a pilot chooses m
    # Stationary distribution with a rule that `keeps_ratio`: "tempered" or "stored"; None: unknown
    stationary: str | None = None
    rescores: bool = False  # whether each step evaluates the current point again
    keeps_batch: bool = False  # whether a point keeps the minibatch of its first evaluation
    keeps_index: bool = False  # whether the state keeps the indices of that minibatch
    # Whether the next step evaluates the current point on this candidate's minibatch
    hands_batch_on: bool = False
    # Minibatch size of a proposal's gradients, where they are independent of the decision's data
    gradient_m: int | None = None
    keeps_full_sums: bool = False  # whether the state stores the current point's full-data sum
    rounds: int = 1  # how many times over a step in torch does its operations, for cost estimates

    @abstractmethod
    def refuses(self, target: Target) -> str | None:
        """Return why this pairing cannot be used with the target, or None."""

    @abstractmethod
    def reads(self, target: Target) -> int:
        """Return how many data a decision initially reads, for plans and cost estimates."""

    @abstractmethod
    def start(self, target: Target, theta: Tensor, draws: Draws) -> Evaluation:
        """Return the evaluation at the starting points `theta` (C, D)."""

    @abstractmethod
    def current(
        self, target: Target, kept: Evaluation, draws: Draws, grad_temperature: Tensor | None = None
    ) -> Evaluation:
        """Return the evaluation of the current point on the data used in this step.

        `grad_temperature`: the temperature (C,) of the gradient that the proposal needs; None if it needs none.
        """

    @abstractmethod
    def compare(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        draws: Draws,
        grad_temperature: Tensor | None = None,
    ) -> tuple[Evaluation, Difference | Supply | Arrivals]:
        """Return the evaluation of the candidate `theta` (C, D), and its difference from the origin or a supply."""

    def native(self) -> NativePairing | None:
        """Return this pairing's form in a compiled loop, or None."""
        return None
