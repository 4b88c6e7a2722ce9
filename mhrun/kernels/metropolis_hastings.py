"""Propose, score, decide."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.parts import SUPPLY, Kernel, Pairing, Proposal, Rule
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import (
    Contest,
    Controls,
    Difference,
    Evaluation,
    Info,
    State,
    choose,
)

_ROOMS = {"proposal": "proposals", "pairing": "pairing", "rule": "rules"}


def disagree(rule: Rule, pairing: Pairing, target: Target) -> str | None:
    """Return why this rule cannot decide on what this pairing hands over, or None."""
    judge, scorer = type(rule).__name__, type(pairing).__name__
    if rule.wants != pairing.offers:
        if rule.wants == SUPPLY:
            return f"{judge} grows its minibatch, which {scorer} does not let it; choose pairing growing."
        return f"{scorer} leaves the minibatch to the rule, but {judge} wants one; choose another pairing."
    m = pairing.m
    if m is not None and 1 <= m < rule.min_batch and target.error_share(m) > 0:
        return (
            f"{judge} must know the noise of a minibatch, which m = {m} cannot tell; "
            f"choose m >= {rule.min_batch}."
        )
    return None


class MetropolisHastings(Kernel):
    """One Metropolis-Hastings step of any proposal, pairing and rule.

    The pairing and the rule together are the acceptance test: random_walk + full + metropolis is
    Metropolis's own algorithm, random_walk + shared + metropolis is MINT.

    Args:
        proposal: where to, and how likely was that?
        pairing: on which data are the two points scored?
        rule: yes or no?

    Raises:
        Refusal: a part that is none of its kind.
    """

    decides = True
    reversible = True
    pairing: Pairing
    rule: Rule

    @property
    def needs_noise(self) -> bool:
        """Whether it degenerates at a noise temperature of 0, which is the width of the moves' densities."""
        return self.proposal.needs_noise

    @property
    def stationary(self) -> dict[str, Any] | None:
        """The stationary distribution where its parts know one: ``distribution`` and ``m`` (None: all data)."""
        distribution = self.pairing.stationary
        if distribution is None or not self.rule.keeps_ratio:
            return None
        return {"distribution": distribution, "m": self.pairing.m}

    @property
    def is_sequential(self) -> bool:
        """Whether the rule decides how many data are read."""
        return self.rule.wants_terms

    def __init__(self, proposal: Proposal, pairing: Pairing, rule: Rule) -> None:
        parts = ((proposal, "proposal", Proposal), (pairing, "pairing", Pairing), (rule, "rule", Rule))
        for part, what, base in parts:
            if not isinstance(part, base):
                raise Refusal(
                    f"{type(part).__name__} of {type(part).__module__} is no {what}; those are in "
                    f"mhrun.{_ROOMS[what]}, and one of your own derives from mhrun.parts.{base.__name__}."
                )
        self.proposal = proposal
        self.pairing = pairing
        self.rule = rule

    def refuses(self, target: Target) -> str | None:
        """Ask the parts, and whether rule and pairing go together."""
        if reason := disagree(self.rule, self.pairing, target):
            return reason
        pairing = type(self.pairing).__name__
        if self.pairing.offers == SUPPLY and self.proposal.gradients:
            # A test that corrects for minibatch noise cannot have the minibatch that drove the proposal.
            return (
                f"{type(self.proposal).__name__} follows a minibatch's gradient, and {pairing} has no minibatch yet; "
                "choose a proposal without gradients."
            )
        if self.proposal.gradients and target.gradient_noise:
            return (
                f"gradient_noise is for a dynamics: {type(self.proposal).__name__} needs the gradients of both points "
                "without it, or its densities are not those of its moves."
            )
        if self.pairing.offers == SUPPLY and target.common_batch:
            return "a growing minibatch is each chain's own: common_batch=false."
        return self.pairing.refuses(target)

    def reads(self, target: Target) -> int:
        """Ask the pairing."""
        return self.pairing.reads(target)

    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Score the starting points (C, D)."""
        evaluation = self.pairing.start(target, theta, draws)
        if not (self.proposal.gradients or self.pairing.hands_batch_on):  # else the first step wants it
            evaluation = evaluation._replace(batch=None)
        return State(evaluation._replace(log_lik=None, rows=None, n_lik=0, n_grad=0), {})

    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Move every chain one step."""
        grad_temperature = controls.temperature if self.proposal.gradients else None
        origin = self.pairing.current(target, state.evaluation, draws, grad_temperature)
        theta = self.proposal.sample(origin, controls, draws)
        candidate, contest = self.contest(target, origin, theta, controls, draws)
        verdict = self.rule.decide(contest, draws)

        found = contest.difference
        n_lik = origin.n_lik + candidate.n_lik + (0 if found is None else found.n_lik)
        n_grad = origin.n_grad + candidate.n_grad
        evaluated = torch.full_like(verdict.batch_size, n_lik)
        n_lik_overhead = torch.zeros_like(evaluated)
        if contest.supply is not None:  # at both points; what was read ahead of the decision is left out
            n_lik_overhead = contest.supply.n_lik_overhead
            evaluated = 2 * verdict.batch_size + n_lik_overhead
        # A rejection for want of a number: an infinite ratio against the candidate is an honest one.
        diverging = verdict.log_ratio.isnan()
        info = Info(
            accepted=verdict.accepted,
            log_ratio=verdict.log_ratio,
            log_ratio_var=verdict.log_ratio_var,
            batch_size=verdict.batch_size,
            n_lik=evaluated,
            n_lik_overhead=n_lik_overhead,
            n_grad=torch.full_like(verdict.accepted, n_grad, dtype=torch.int64),
            diverging=diverging,
            log_ratio_skew=verdict.log_ratio_skew,
        )
        chosen = choose(verdict.accepted, self._kept(candidate), self._kept(origin), on_host=draws.on_host)
        if self.pairing.hands_batch_on:
            chosen = chosen._replace(batch=candidate.batch)
        return State(chosen, state.aux), info

    def _kept(self, point: Evaluation) -> Evaluation:
        """Return what the next step wants of a point."""
        if self.pairing.rescores:
            return Evaluation(point.theta, point.log_prior)
        return point._replace(batch=None, log_lik=None, rows=None, n_lik=0, n_grad=0)

    def contest(
        self, target: Target, origin: Evaluation, theta: Tensor, controls: Controls, draws: Draws
    ) -> tuple[Evaluation, Contest]:
        """Score the points theta (C, D) against the origin: what the rule decides on."""
        grad_temperature = controls.temperature if self.proposal.gradients else None
        candidate, found = self.pairing.compare(target, origin, theta, draws, grad_temperature)

        offset = target.prior_power(controls.temperature) * (candidate.log_prior - origin.log_prior)
        forward = self.proposal.log_density(origin, theta, controls)
        if forward is not None:
            backward = self.proposal.log_density(candidate, origin.theta, controls)
            assert backward is not None
            offset = offset + backward - forward
        elif self.proposal.gradients:  # a point without a gradient could not be left again
            assert candidate.grad is not None
            offset = offset.masked_fill(~candidate.grad.isfinite().all(-1), torch.nan)
        scale = (target.n / controls.temperature).double()
        if isinstance(found, Difference):
            contest = Contest(found, scale, offset)
        else:
            contest = Contest(None, scale, offset, found)
        return candidate, contest
