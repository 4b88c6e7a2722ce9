"""Metropolis-Hastings with the reversible Langevin proposal and adaptive backward moves."""

from __future__ import annotations

import copy
from typing import Protocol, Self

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.kernels.metropolis_hastings import MetropolisHastings
from mhrun.kernels.preconditioned import PreconditionedBackward
from mhrun.parts import Pairing, Rule
from mhrun.proposals.reversible_langevin import ReversibleLangevinProposal
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Controls, Evaluation, Info, State
from mhrun.types.scale import Scale

_MARGIN = 1.0  # lower limit of beta: backward moves are at least as wide as forward moves


class ForwardMoves(Protocol):
    """The moves of `ReversibleLangevinProposal`, possibly in scaled coordinates."""

    def forward(self, draws: Draws) -> Tensor:
        """Return which chains move forward at this step, (C,) bool."""
        ...

    def moved(self, origin: Evaluation, forward: Tensor, controls: Controls, draws: Draws) -> Tensor:
        """Return the points (C, D) after a forward move where `forward` (C,) is True, else a backward move."""
        ...


class AdaptiveBackward(MetropolisHastings):
    """RSGLD with beta adapted to the acceptance rate of each chain (Wu, Wang & Wong 2020, section 3.2).

    After each epoch, and before the first:

    - If the mean acceptance probability is above `upper`, beta is adjusted. `trials` forward moves are scored from the
      current point without being made. While more than the share `forward` of them would be accepted, beta is lowered
      by `change` times its value at the beginning of the adjustment. It stays above 1, and the total decrease is at
      most the share `most`.
    - If the mean acceptance probability is below `lower`, beta is raised by the share `change`.

    Each trial uses a fresh pair of minibatches. Details that the paper leaves open follow the RSGLD code.

    The adaptation never ends, so the chain has no stationary distribution by construction. The state contains, for the
    current epoch, the sum of the acceptance probabilities of all moves, that of the forward moves, and the number of
    forward moves.

    Args:
        proposal: a `ReversibleLangevinProposal`; its beta is ignored.
        pairing: see `MetropolisHastings`.
        rule: see `MetropolisHastings`; its acceptance probability must be a function of the log-ratio.
        epoch: steps of an epoch.
        start: initial beta.
        upper: mean acceptance probability above which beta is adjusted.
        lower: mean acceptance probability below which beta is raised.
        forward: mean acceptance probability of the trials above which beta is lowered.
        trials: trial moves of one test.
        change: relative change of beta.
        most: largest relative decrease of beta in one adjustment.

    Raises:
        Refusal: an invalid setting or part.
    """

    adapts = True
    reversible = False

    def __init__(
        self,
        proposal: ReversibleLangevinProposal,
        pairing: Pairing,
        rule: Rule,
        epoch: int,
        start: float = 1000.0,
        upper: float = 0.4,
        lower: float = 0.2,
        forward: float = 0.7,
        trials: int = 100,
        change: float = 0.05,
        most: float = 0.5,
    ) -> None:
        super().__init__(proposal, pairing, rule)
        if not isinstance(proposal, ReversibleLangevinProposal):
            raise Refusal(
                "AdaptiveBackward needs the proposal reversible_langevin, which has backward moves."
            )
        if not (start >= 1 and epoch >= 1 and trials >= 1 and 0 < change < 1 and 0 < most < 1):
            raise Refusal(
                "AdaptiveBackward needs start >= 1, epoch and trials >= 1, and change and most within (0, 1)."
            )
        if not (0 <= lower < upper <= 1 and forward < 1):
            raise Refusal(
                f"AdaptiveBackward needs 0 <= lower < upper <= 1 and forward < 1, not lower = {lower:g}, "
                f"upper = {upper:g} and forward = {forward:g}."
            )
        if rule.probability(torch.zeros(1)) is None:
            raise Refusal(
                f"AdaptiveBackward needs an acceptance probability that the log-ratio determines, and "
                f"{type(rule).__name__} has none; choose rule metropolis."
            )
        self.forward_moves: ForwardMoves = proposal
        self.epoch = epoch
        self.first = start
        self.upper = upper
        self.lower = lower
        self.forward = forward
        self.trials = trials
        self.change = change
        self.most = most

    def for_pilot(self) -> MetropolisHastings:
        """Return the kernel with the initial beta, which does not adapt."""
        proposal = copy.copy(self.proposal)
        assert isinstance(proposal, ReversibleLangevinProposal)
        proposal.beta = self.first
        return MetropolisHastings(proposal, self.pairing, self.rule)

    def with_scale(self, scale: Scale) -> Self:
        """Return a copy whose proposal moves in scaled coordinates."""
        changed = copy.copy(self)
        assert isinstance(self.proposal, ReversibleLangevinProposal)
        changed.proposal = changed.forward_moves = PreconditionedBackward(self.proposal, scale)
        return changed

    @property
    def _most_tests(self) -> int:
        """The number of times that beta can be lowered in an adjustment."""
        return int(self.most / self.change + 1e-9)

    def extra(self, steps: int) -> tuple[int, int]:
        """Return the least and the most trials in `steps` steps; a trial costs about as much as a step."""
        return self.trials, -(-steps // self.epoch) * self._most_tests * self.trials

    def steps_until_extra(self, step: int) -> int:
        """Return how many steps from `step` on are before the next adaptation."""
        return -(step - 1) % self.epoch

    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Return the initial state at theta (C, D)."""
        state = super().start(target, theta, draws)
        zero = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        counts = {name: zero.clone() for name in ("accepted_forward", "forward")}
        counts["accepted"] = torch.full_like(zero, self.epoch)  # an adjustment before the first epoch too
        return State(state.evaluation, {"backward": torch.full_like(zero, self.first), **counts})

    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Move every chain by one step; adapt beta before the first step of an epoch."""
        beta, accepted = state.aux["backward"], state.aux["accepted"]
        of_forward, forward = state.aux["accepted_forward"], state.aux["forward"]
        trials = torch.zeros_like(accepted, dtype=torch.int64)
        if draws.due(self.epoch):
            mean = accepted / self.epoch
            beta = torch.where(mean < self.lower, beta * (1 + self.change), beta)
            beta, trials = self._adjusted(
                target, state.evaluation.theta, controls, draws, beta, mean > self.upper
            )
            accepted, of_forward, forward = (torch.zeros_like(accepted) for _ in range(3))
        controls = controls._replace(backward=beta.to(controls.step_size.dtype))
        after, info = super().step(target, state, controls, draws)
        chance = self._chance(info.log_ratio)
        onward = self.forward_moves.forward(draws.again())
        aux = {
            "backward": beta,
            "accepted": accepted + chance,
            "accepted_forward": of_forward + onward * chance,
            "forward": forward + onward,
        }
        info = info._replace(n_lik=info.n_lik + trials, n_grad=info.n_grad + trials)
        return State(after.evaluation, aux), info

    def _adjusted(
        self, target: Target, theta: Tensor, controls: Controls, draws: Draws, beta: Tensor, begin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return beta (C,) after adjusting the chains in `begin` (C,), and the evaluations spent (C,)."""
        beta, spent = beta.clone(), torch.zeros_like(begin, dtype=torch.int64)
        rows, first = begin.nonzero()[:, 0], beta.clone()
        for lowered in range(1, self._most_tests + 1):
            # One test costs about half an epoch, so the synchronisation with the device is negligible.
            rows = rows[beta[rows] - self.change * first[rows] > _MARGIN]
            if len(rows) == 0:
                break
            rate, cost = self._tried(target, theta[rows], controls, draws, beta, rows, lowered)
            spent[rows] += cost
            rows = rows[rate > self.forward]
            beta[rows] -= self.change * first[rows]
        return beta, spent

    def _tried(
        self,
        target: Target,
        theta: Tensor,
        controls: Controls,
        draws: Draws,
        beta: Tensor,
        rows: Tensor,
        test: int,
    ) -> tuple[Tensor, int]:
        """Return the mean acceptance probability of `trials` forward moves (R,), and the evaluations per chain."""
        trial_controls = controls._replace(backward=beta.to(controls.step_size.dtype)).each(lambda c: c[rows])
        # Each trial of each test uses two separate sets of numbers: one minibatch for the current point, one for the
        # candidate.
        first, count = test * 2 * self.trials, (self._most_tests + 1) * 2 * self.trials
        always = torch.ones(len(rows), dtype=torch.bool, device=theta.device)
        total = torch.zeros(len(rows), dtype=torch.float64, device=theta.device)
        cost = 0
        for trial in range(self.trials):
            current_draws, move_draws = (
                draws.trial("backward", rows, first + 2 * trial + k, count) for k in range(2)
            )
            evaluation = self.pairing.start(target, theta, current_draws)
            origin = self.pairing.current(target, evaluation, move_draws, trial_controls.temperature)
            points = self.forward_moves.moved(origin, always, trial_controls, move_draws)
            candidate, contest = self.contest(target, origin, points, trial_controls, move_draws)
            total += self._chance(contest.log_ratio)
            cost += max(origin.n_lik + candidate.n_lik, origin.n_grad + candidate.n_grad)
        return total / self.trials, cost

    def _chance(self, log_ratio: Tensor) -> Tensor:
        """Return the acceptance probability (C,) at log-ratios (C,)."""
        probability = self.rule.probability(log_ratio)
        assert probability is not None
        return probability
