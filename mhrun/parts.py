"""Base classes of the parts of a kernel, and the attributes that each part declares.

A part derives from its base class and inherits the defaults of undeclared attributes. Whether parts go together is
decided by these attributes, so that a user's part can replace any of these. A kernel has those of its parts that there
are; a pilot fills in those of mhrun's own kernels, which it knows by their class.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.native import NativeDecision, NativeDynamics, NativePairing, NativeProposal, NativeTest, Piece
from mhrun.numbers import whole_number
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import (
    Arrivals,
    Contest,
    Controls,
    Difference,
    Evaluation,
    Info,
    State,
    Supply,
    Trajectory,
    Verdict,
)

AUTO = "auto"
"""A setting that a pilot run finds (`mhrun.engine.pilot`)."""

AUTO_M = 2  # stands for a minibatch size that is not known yet


def checked_minibatch_size(m: Any) -> int:
    """Return a minibatch size that is a number, or `AUTO_M` for ``auto``.

    Raises:
        Refusal: it is neither.
    """
    if isinstance(m, str) and m == AUTO:
        return AUTO_M
    return whole_number("m", m, other=AUTO)


DIFFERENCE, SUPPLY, ARRIVALS, ESTIMATES = "difference", "supply", "arrivals", "estimates"
"""What a pairing passes to a rule: a `Difference` on a fixed batch, a `Supply` of terms to draw from, `Arrivals` at
data whose terms are bounded, or a `Difference` of two estimates that are kept with their points."""


class Proposal(ABC):
    """Draws a candidate from q(origin -> candidate) and returns its log-density."""

    gradients: bool = False  # whether it needs the gradient at both points
    ratio: bool = True  # whether its densities enter the acceptance ratio, unless they cancel
    keeps_balance: bool = (
        True  # whether these are the densities of its moves, so that the test is Metropolis-Hastings
    )
    # Most efficient acceptance rate for large D with Metropolis's rule; None: not declared. A pilot then assumes that
    # of a random walk, 0.234, or with gradients that of Langevin moves, 0.574, and its line names it.
    best_acceptance: float | None = None

    # Most efficient rate at D = 1, less `best_acceptance`; None: 0.207 without gradients, else 0
    excess_acceptance: float | None = None

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

    def native(self) -> NativeProposal | None:
        """Return the pieces of a compiled loop, or None."""
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
        self,
        origin: Evaluation,
        gradient: Callable[[Tensor], Tensor],
        controls: Controls,
        draws: Draws,
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
        raise Refusal(f"{type(self).__name__} follows a trajectory; it goes with kernel MetropolisHastings.")

    def log_density(self, origin: Evaluation, to: Tensor, controls: Controls) -> Tensor | None:
        """Refuse: it has no density; see `log_ratio`.

        Raises:
            Refusal: always.
        """
        raise Refusal(f"{type(self).__name__} has no density; it goes with kernel MetropolisHastings.")


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


class Rule(ABC):
    """Accepts or rejects the candidate of a contest."""

    wants: str = DIFFERENCE  # what it decides from; SUPPLY if it grows its minibatch
    exact: bool = False  # whether the target is stationary at any minibatch size, if the model's bounds hold
    keeps_ratio: bool = False  # whether it satisfies detailed balance for the ratio it receives
    min_batch: int = 1  # smallest minibatch from which it can estimate the noise of the log-ratio
    # Whether it corrects for minibatch noise; otherwise a run warns if that noise dominates
    corrects_noise: bool = False

    barker: bool = False  # whether it accepts with Barker's probability r / (1 + r), possibly of a noisy r

    @property
    def wants_terms(self) -> bool:
        """Whether it chooses how many data it reads."""
        return self.wants in (SUPPLY, ARRIVALS)

    @property
    def noise_limit(self) -> float:
        """The standard deviation of the log-ratio's minibatch noise above which a run warns.

        At 0.7 standard deviations of draws may be 14 % too large, see `mhrun.kernels.acceptance.noise_widening`.
        """
        return math.inf if self.corrects_noise else 0.7

    @property
    def skew_limit(self) -> float:
        """The `Verdict.log_ratio_skew` above which a run warns."""
        return math.inf

    @property
    def skew_remedy(self) -> str:
        """The advice given in that warning."""
        return ""

    def acceptance_error(self, n: int, noise: float, rate: float) -> float:
        """Return the mean |a(L) - min(1, e^L)| that the test's design causes; 0 if it causes none.

        a is the acceptance probability that the test has, L the log-ratio from all data, over moves with the
        acceptance rate `rate`.

        Args:
            n: number of data.
            noise: (n/T) sd / sqrt(n - 1), with sd the standard deviation of the differences of log-likelihoods.
            rate: acceptance rate, in (0, 1).
        """
        return 0.0

    @abstractmethod
    def decide(self, contest: Contest, draws: Draws) -> Verdict:
        """Accept or reject the candidate of every chain."""

    def probability(self, log_ratio: Tensor) -> Tensor | None:
        """Return the acceptance probability (C,) at log-ratios (C,), or None if it depends on more than those."""
        return None

    def native(self) -> Piece | NativeDecision | None:
        """Return the piece ``threshold(u)`` (accept iff it is below the log-ratio), a deciding piece, or None."""
        return None

    def sequential(self, n: int) -> NativeTest | None:
        """Return the pieces of a test on a supply of n data, or None."""
        return None


class Dynamics(ABC):
    """A transition of theta without a tractable density; auxiliary variables are in `aux`."""

    # Whether it needs `aux["log_density"]` (C,), the estimated full-data log posterior
    energies: bool = False
    # c if gradient noise of variance V adds at most c e V / 2 to T; None: unknown, or an optimiser
    noise_gain: float | None = None
    corrects_noise: bool = False  # whether it takes gradient noise that it knows off what it adds
    # The variance of gradient noise, of each coordinate of theta, that it is given and takes off; None: it estimates it
    known_noise: float | None = 0.0
    curvature_gain: float = 1.0  # b if the relative error of the variance is at most b e H / 2 at curvature H
    # g if, to first order, steps of size e shift means by g times what those of SGLD do; None: unknown
    mean_gain: float | None = None
    small_step_bias: float = (
        0.0  # up to which theta's variance is off, relatively, in the limit of small steps
    )
    # Whether a thermostat holds the kinetic energy, and so takes off the temperature what steps add, the mean over
    # coordinates; `small_step_bias` is then the error of the temperature that remains in small steps
    holds_kinetic_energy: bool = False
    optimises: bool = False  # whether it adds no noise at any temperature: an optimiser
    marks_valid: bool = False  # whether `aux["valid"]` (C,) marks the steps at which theta is a draw
    valid_remedy: str = "Raise steps."  # the advice if few steps are

    @property
    def needs_noise(self) -> bool:
        """Whether it is undefined at a noise temperature of 0; such schedules are then refused."""
        return self.energies

    @abstractmethod
    def start(self, theta: Tensor, draws: Draws) -> dict[str, Tensor]:
        """Return the initial `aux`."""

    @abstractmethod
    def move(
        self, theta: Tensor, grad: Tensor, aux: dict[str, Tensor], controls: Controls, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the next theta (C, D) and aux; `grad` (C, D) estimates the full-data log-posterior gradient."""

    def largest_step(self, dim: int, temperature: float) -> float:
        """Return the step size up to which it is stable, whatever the curvature; a pilot takes no longer one. 0: none.

        Args:
            dim: number of coordinates.
            temperature: of the noise.
        """
        return math.inf

    def kinetic_temperature(self, aux: Mapping[str, Tensor], controls: Controls) -> Tensor | None:
        """Return the temperature (C,) that the momenta in `aux` have; None without momenta that would show it.

        In small steps and without gradient noise its mean is that of the noise, `controls.noise_temperature`.
        """
        return None

    def native(self) -> NativeDynamics | None:
        """Return the piece of a compiled loop, or None."""
        return None


class Kernel(ABC):
    """Moves all chains by one step."""

    # Whether it satisfies detailed balance with its stationary distribution; `mhrun check` then tests it
    reversible: bool = False
    optimises: bool = False  # whether its steps have no noise: an optimiser
    fitted: bool = False  # whether it draws from an approximation fitted to the target
    adapts: bool = False  # whether adaptation never ends, so that the stationary distribution is unknown
    keeps_buffers: bool = False  # whether it keeps a module's buffers with theta (BatchNorm in training mode)
    rungs: int = 1  # number of rungs of a ladder
    m_is_open: bool = False  # whether a pilot chooses the minibatch size of its gradients
    rule: Rule | None = None  # the rule of its acceptance test, if it is made of parts
    pairing: Pairing | None = None  # the pairing of its acceptance test, likewise
    proposal: Proposal | None = None  # the proposal whose candidates the test accepts or rejects, likewise
    dynamics: Dynamics | None = None  # the dynamics of a kernel without a test, likewise

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
