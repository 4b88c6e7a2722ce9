"""Replica exchange: ladders of chains at different temperatures that exchange their points."""

from __future__ import annotations

import copy
from typing import Any, Literal, Self

import torch
from torch import Tensor

from mhrun.errors import Refusal, check_choice
from mhrun.exchanges import MADE, REFUSED
from mhrun.kernels.metropolis_hastings import decision, disagree
from mhrun.numbers import whole_number
from mhrun.parts import ARRIVALS, SUPPLY, Kernel, Pairing, Rule
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import (
    BUFFER,
    Arrivals,
    Contest,
    Controls,
    Difference,
    Evaluation,
    Info,
    State,
    Supply,
)


class ReplicaExchange(Kernel):
    """Any kernel on a ladder of temperatures; every `every` steps neighbouring rungs propose to exchange theta.

    Chain c is rung c mod rungs of ladder c // rungs. The schedules give each chain its temperature and other controls.
    Rungs a and b at temperatures T_a and T_b exchange theta_a and theta_b by a contest with the log-ratio

        (1/T_a - 1/T_b) (log p(data | theta_b) - log p(data | theta_a)),

    plus the same term of the log-prior if the prior is tempered too. If the kernel keeps the density of each rung, that
    to the power 1/T, the product of these is invariant with the Metropolis or Barker rule on all data (parallel
    tempering). It is also invariant with a rule that corrects for minibatch noise (Luo et al. 2020, Algorithm 1, with
    the sign of its eq. 7 corrected). A kernel whose points keep their minibatches has another density, of point and
    minibatch, which exchanges do not keep: a run warns.

    The kernel moves each rung; momenta and thermostats stay with the rung, and a module's buffers go with theta. A rung
    does not exchange if it has stopped, or if its theta is not a valid draw at that step (``valid``, see `Dynamics`).

    Args:
        kernel: the kernel that moves a rung.
        pairing: chooses the data on which the two points of an exchange are evaluated.
        rule: accepts or rejects the exchange.
        rungs: rungs of a ladder; the number of chains must be a multiple.
        every: steps between two exchanges.
        order: which neighbours propose an exchange: ``random``, the even or the odd pairs with probability 1/2 each
            (Luo et al. 2020), or ``alternate``, the even and the odd pairs alternately (Syed et al. 2022).
        sign: ``right``; or ``printed``, the log-ratio with the sign of Luo et al.'s eq. 7 as printed, which has no
            known stationary distribution.

    Raises:
        Refusal: an invalid setting.
    """

    pairing: Pairing
    rule: Rule

    def __init__(
        self,
        kernel: Kernel,
        pairing: Pairing,
        rule: Rule,
        rungs: int,
        every: int = 1,
        order: Literal["random", "alternate"] = "random",
        sign: Literal["right", "printed"] = "right",
    ) -> None:
        check_choice("order", order, ("random", "alternate"))
        check_choice("sign", sign, ("right", "printed"))
        self.kernel = kernel
        self.pairing = pairing
        self.rule = rule
        self.rungs = whole_number("rungs", rungs, least=2)
        self.every = whole_number("every", every, least=1)
        self.order = order
        self.sign = 1 if sign == "right" else -1

    @property
    def decides(self) -> bool:
        """Whether the step of a rung ends in an acceptance test."""
        return self.kernel.decides

    @property
    def stationary(self) -> dict[str, Any] | None:
        """The target of each rung, if the kernel of a rung and the exchanges are exact; else None."""
        keeps = self.pairing.stationary == "tempered" and self.rule.keeps_ratio and self.sign == 1
        of_rung = self.kernel.stationary
        return of_rung if keeps and of_rung == {"distribution": "tempered", "m": None} else None

    @property
    def of_a_chain(self) -> Kernel:
        """The kernel that moves a rung."""
        return self.kernel.of_a_chain

    @property
    def exchange_every(self) -> int:  # type: ignore[override]
        """Steps between two exchanges."""
        return self.every

    def with_kernel_of_a_chain(self, kernel: Kernel) -> Self:
        """Return the ladder with this kernel for its rungs."""
        changed = copy.copy(self)
        changed.kernel = self.kernel.with_kernel_of_a_chain(kernel)
        return changed

    @property
    def optimises(self) -> bool:  # type: ignore[override]
        """Whether the kernel of a rung is an optimiser."""
        return self.kernel.optimises

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        """Whether adaptation of the kernel of a rung never ends."""
        return self.kernel.adapts

    @property
    def needs_noise(self) -> bool:
        """Whether the step of a rung is undefined at a noise temperature of 0."""
        return self.kernel.needs_noise

    @property
    def keeps_buffers(self) -> bool:  # type: ignore[override]
        """Whether the kernel of a rung keeps a module's buffers; they follow theta through exchanges."""
        return self.kernel.keeps_buffers

    @property
    def is_sequential(self) -> bool:
        """Whether the number of data read in a step depends on the outcome of a sequential test."""
        return self.kernel.is_sequential or self.rule.wants_terms

    def separate_gradients(self) -> float:
        """Return the share of the rungs' own moves; exchanges evaluate log-likelihoods alone."""
        return self.kernel.separate_gradients()

    def extra(self, steps: int) -> tuple[int, int]:
        """Return the least and the most extra work of the rungs' own moves in `steps` steps."""
        return self.kernel.extra(steps)

    def steps_until_extra(self, step: int) -> int | None:
        """Return how many steps from `step` (from 1) on have no extra work, or None if there is never any."""
        return self.kernel.steps_until_extra(step)

    def refuses(self, target: Target) -> str | None:
        """Return why the kernel, the parts and the target are incompatible, or None."""
        if reason := self.kernel.refuses_ladder() or self.kernel.refuses(target):
            return reason
        if self.pairing.m_is_open:
            return (
                f"m = auto is of a kernel's moves; give the minibatch of the exchanges a size: "
                f"{type(self.pairing).__name__}(m)."
            )
        if self.pairing.keeps_batch or self.pairing.hands_batch_on:
            return (
                f"{type(self.pairing).__name__} keeps a minibatch from step to step, but an exchange evaluates both "
                "points anew; choose another pairing."
            )
        if self.rule.wants == ARRIVALS:  # its bounds hold at one temperature
            return (
                f"{type(self.rule).__name__} decides moves of one chain, not exchanges; choose another rule."
            )
        if target.energy_noise and self.rule.wants_terms:
            return (
                f"{type(self.rule).__name__} grows its minibatch and allows for minibatch noise only; leave out "
                "energy_noise, or choose another rule."
            )
        return disagree(self.rule, self.pairing, target) or self.pairing.refuses(target)

    def reads(self, target: Target) -> int:
        """Return the data of the kernel's step plus those of the exchange, averaged over steps."""
        return self.kernel.reads(target) + self.pairing.reads(target) // self.every

    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Return the initial state at theta (C, D).

        Raises:
            Refusal: the number of chains is not a multiple of the number of rungs.
        """
        if len(theta) % self.rungs:
            raise Refusal(
                f"{len(theta)} chains are not a whole number of ladders of {self.rungs} rungs; "
                f"choose chains = {self.rungs}, {2 * self.rungs}, ..."
            )
        return self.kernel.start(target, theta, draws)

    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Move every chain by one step, then exchange if one is due."""
        state, info = self.kernel.step(target, state, controls, draws)
        if not draws.due(self.every, last=True):
            return state, info
        state, exchange, n_lik, n_lik_overhead = self.exchange(target, state, controls.temperature, draws)
        counted = {"n_lik": info.n_lik + n_lik, "n_lik_overhead": info.n_lik_overhead + n_lik_overhead}
        return state, info._replace(exchange=exchange, **counted)

    def exchange(
        self, target: Target, state: State, temperature: Tensor, draws: Draws
    ) -> tuple[State, Tensor, Tensor, Tensor]:
        """Propose exchanges between neighbours after a step, with the random numbers `draws`.

        Returns:
            the state after the exchange; its outcome per chain (C,) int8; the per-datum log-likelihoods evaluated for
            it per chain (C,); and how many of them served a full-data statistic (C,).
        """
        low, draws = self._pairs(draws)
        high, current = low + 1, state.evaluation
        first, second = low, high
        if self.pairing.offers == SUPPLY:  # the rule may divide by the scale: it must not be negative
            turned = self.sign * (1 / temperature[low] - 1 / temperature[high]) < 0
            first, second = torch.where(turned, high, low), torch.where(turned, low, high)
        # Buffers belong to the point: the exchange evaluates both points with their own running statistics.
        scored = current._replace(theta=target.points(state)) if target.has_buffers else current
        contest, n_lik = self._contest(target, scored, temperature, first, second, draws)
        verdict = decision(self.rule, contest, draws)
        made = verdict.accepted
        if "stopped" in state.aux:  # a chain that has stopped keeps its place
            made = made & ~state.aux["stopped"][low] & ~state.aux["stopped"][high]
        if "valid" in state.aux:  # and so does one that is at another temperature in this step
            made = made & state.aux["valid"][low] & state.aux["valid"][high]

        evaluations = torch.full_like(verdict.batch_size, n_lik)
        overhead = torch.zeros_like(evaluations)
        if contest.supply is not None:
            overhead = contest.supply.n_lik_overhead
            evaluations = contest.supply.evaluated(verdict.batch_size)
        chains = torch.arange(len(temperature), device=low.device)
        # Each chain of a pair accounts for half of the evaluations, the lower one for an odd one.
        evaluated, n_lik_overhead = (
            torch.zeros_like(chains).index_copy(0, low, count - count // 2).index_copy(0, high, count // 2)
            for count in (evaluations, overhead)
        )
        outcome = torch.where(made, MADE, REFUSED).to(torch.int8)
        exchange = torch.zeros(len(chains), dtype=torch.int8, device=low.device)
        exchange = exchange.index_copy(0, low, outcome).index_copy(0, high, outcome)
        source = chains.index_copy(0, low, torch.where(made, high, low))
        source = source.index_copy(0, high, torch.where(made, low, high))
        evaluation = Evaluation.of({name: _taken(field, source) for name, field in current.tensors().items()})
        evaluation = target.gradients.retempered(evaluation, temperature)
        aux = {name: value[source] if name.startswith(BUFFER) else value for name, value in state.aux.items()}
        return State(evaluation, aux), exchange, evaluated, n_lik_overhead

    def noise(self, target: Target, theta: Tensor, temperature: Tensor, draws: Draws) -> Tensor:
        """Return the estimated variance over minibatches of the log-ratio of exchanges between all neighbours.

        Args:
            target: whose rule decides from a difference, see `Contest`.
            theta: the points of all rungs (C, D).
            temperature: of the rungs (C,).
            draws: of which the minibatches are.

        Returns:
            (L, rungs - 1), of each rung and the next one.
        """
        chains = torch.arange(len(theta), device=theta.device).view(-1, self.rungs)
        low = chains[:, :-1].flatten()
        point = Evaluation(theta, theta.new_zeros(len(theta)))
        if self._has_full_sums:
            point = target.evaluate_full(theta)
        pairs = draws.part("exchange noise", low)
        contest, _ = self._contest(target, point, temperature, low, low + 1, pairs)
        return contest.log_ratio_var.view(-1, self.rungs - 1)

    def _contest(
        self,
        target: Target,
        evaluation: Evaluation,
        temperature: Tensor,
        first: Tensor,
        second: Tensor,
        draws: Draws,
    ) -> tuple[Contest, int]:
        """Return the decisions on the exchange of each pair (P,), and how many log-likelihoods gave them."""
        cold, hot = temperature[first].double(), temperature[second].double()
        origin, candidate, comparison = self._scored(target, evaluation, first, second, draws)
        n_lik = origin.n_lik + candidate.n_lik
        if isinstance(comparison, Difference):
            n_lik += comparison.n_lik
            if target.energy_noise:
                comparison = target.differences.add_noise(comparison, draws)
        power = self.sign * (target.prior_power(cold) - target.prior_power(hot))
        # An untempered prior cancels, even if its density is 0 at a point.
        offset = torch.where(power == 0, 0.0, power * (candidate.log_prior - origin.log_prior))
        scale = self.sign * target.n * (1 / cold - 1 / hot) + 0.0  # no -0
        return Contest.of(comparison, scale, offset), n_lik

    @property
    def _has_full_sums(self) -> bool:
        """Whether the rungs keep the sums over all data that exchanges need."""
        of_rung = self.kernel.pairing
        return self.pairing.keeps_full_sums and of_rung is not None and of_rung.keeps_full_sums

    def _scored(
        self, target: Target, evaluation: Evaluation, low: Tensor, high: Tensor, draws: Draws
    ) -> tuple[Evaluation, Evaluation, Difference | Supply | Arrivals]:
        """Return the evaluations of both points of each pair (P,), and their difference or a supply of its terms."""
        if self._has_full_sums:
            # The kernel stores both full-data sums, so nothing is evaluated.
            origin, candidate = (
                Evaluation(
                    evaluation.theta[at],
                    evaluation.log_prior[at],
                    evaluation.log_lik_mean[at],  # type: ignore[index]
                    evaluation.log_lik_var[at],  # type: ignore[index]
                )
                for at in (low, high)
            )
            exact = target.differences.unpaired(origin, candidate, target.n)
            return origin, candidate, exact._replace(error=torch.zeros_like(exact.mean))
        started = self.pairing.start(target, evaluation.theta[low], draws)
        origin = self.pairing.current(target, started, draws)
        candidate, comparison = self.pairing.compare(target, origin, evaluation.theta[high], draws)
        return origin, candidate, comparison

    def _pairs(self, draws: Draws) -> tuple[Tensor, Draws]:
        """Return the lower chain of each pair (P,) of this exchange, and the pairs' random numbers."""
        if self.rungs == 2:
            odd = 0
        elif self.order == "alternate":
            odd = draws.parity(self.every)
        else:
            odd = int(draws.coin("exchange", self.every))
        ladders = torch.arange(draws.chains // self.rungs, device=draws.device)[:, None] * self.rungs
        low = (ladders + torch.arange(odd, self.rungs - 1, 2, device=draws.device)).flatten()
        return low, draws.part(f"exchange {odd}", low, self.every)


def _taken(field: Tensor, rows: Tensor) -> Tensor:
    return field[rows] if len(field) == len(rows) else field
