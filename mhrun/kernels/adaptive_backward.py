"""Metropolis-Hastings with the reversible Langevin proposal, whose backward moves adapt."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.kernels.metropolis_hastings import MetropolisHastings
from mhrun.parts import Pairing, Rule
from mhrun.proposals.reversible_langevin import ReversibleLangevinProposal
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Controls, Info, State

_MARGIN = 1.0  # backward moves are never narrower than forward ones


class AdaptiveBackward(MetropolisHastings):
    """RSGLD as Wu, Wang & Wong (2020, section 3.2) train networks: beta follows the acceptance rate, per chain.

    After each epoch whose mean acceptance probability is above `upper` there is an adjustment: `trials` forward moves
    are tried from where the chain is, and none is made; while more than `forward` of them would be accepted, beta is
    lowered by `change` of its value at the beginning of the adjustment, in all by no more than `most` of it and not
    to 1. If the mean acceptance is below `lower`, beta is raised by `change`. There is an adjustment before the first
    epoch too. Each trial has a fresh pair of minibatches. What the paper leaves open is as in the RSGLD code.

    The adaptation does not end, so the chain has no stationary distribution by construction. Of the epoch so far the
    state keeps the sums of the acceptance probabilities, of all moves and of forward ones, and how many of these there
    were.

    Args:
        proposal: a `ReversibleLangevin`; its beta is not used.
        pairing: see `MetropolisHastings`.
        rule: see `MetropolisHastings`.
        epoch: steps of an epoch.
        start: beta at the beginning.
        upper: see above.
        lower: see above.
        forward: see above.
        trials: see above.
        change: see above.
        most: see above.

    Raises:
        Refusal: a setting that has no meaning.
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
        if rule.probability(torch.zeros(1)) is None:
            raise Refusal(
                f"AdaptiveBackward follows the acceptance probability, and {type(rule).__name__} has none that the "
                "log-ratio determines; choose rule metropolis."
            )
        self.forward_moves = proposal
        self.epoch = epoch
        self.first = start
        self.upper = upper
        self.lower = lower
        self.forward = forward
        self.trials = trials
        self.change = change
        self.most = most

    def extra(self, steps: int) -> tuple[int, int]:
        """Return how many trials so many steps bring with them, at least and at most; each is about a step's work."""
        tests = int(self.most / self.change + 1e-9)
        return self.trials, -(-steps // self.epoch) * tests * self.trials

    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Score the starting points (C, D)."""
        begun = super().start(target, theta, draws)
        zero = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        counts = {name: zero.clone() for name in ("accepted_forward", "forward")}
        counts["accepted"] = torch.full_like(zero, self.epoch)  # an adjustment before the first epoch too
        return State(begun.evaluation, {"backward": torch.full_like(zero, self.first), **counts})

    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Move every chain one step; before the first of an epoch, adapt."""
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
        """Return beta (C,) after an adjustment of the chains in `begin` (C,), and the evaluations it took (C,)."""
        beta, spent = beta.clone(), torch.zeros_like(begin, dtype=torch.int64)
        rows, first = begin.nonzero()[:, 0], beta.clone()
        for lowered in range(1, int(self.most / self.change + 1e-9) + 1):
            # A test takes as long as half an epoch or so, so that asking the device which chains are left is nothing.
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
        """Return the mean acceptance of `trials` forward moves of some chains (R,), and what each chain spent."""
        here = controls._replace(backward=beta.to(controls.step_size.dtype)).each(lambda c: c[rows])
        # Each test has numbers of its own, two sets for a trial: one minibatch for where the chain is, one for where it
        # goes.
        number, of = test * 2 * self.trials, round(self.most / self.change + 1) * 2 * self.trials
        always = torch.ones(len(rows), dtype=torch.bool, device=theta.device)
        total = torch.zeros(len(rows), dtype=torch.float64, device=theta.device)
        cost = 0
        for trial in range(self.trials):
            before, now = (draws.trial("backward", rows, number + 2 * trial + k, of) for k in range(2))
            begun = self.pairing.start(target, theta, before)
            origin = self.pairing.current(target, begun, now, here.temperature)
            moved = self.forward_moves.moved(origin, always, here, now)
            candidate, contest = self.contest(target, origin, moved, here, now)
            total += self._chance(contest.log_ratio)
            cost += max(origin.n_lik + candidate.n_lik, origin.n_grad + candidate.n_grad)
        return total / self.trials, cost

    def _chance(self, log_ratio: Tensor) -> Tensor:
        """Return the probability to accept at log-ratios (C,)."""
        found = self.rule.probability(log_ratio)
        assert found is not None
        return found
