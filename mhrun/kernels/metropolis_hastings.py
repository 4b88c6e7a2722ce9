"""Propose, score, decide."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any, Self, cast

import torch
from torch import Tensor

from mhrun.build import check_attributes
from mhrun.errors import Refusal
from mhrun.kernels.preconditioned import PreconditionedProposal, PreconditionedTrajectory
from mhrun.kinds import PACKAGES
from mhrun.parts import (
    ARRIVALS,
    DIFFERENCE,
    ESTIMATES,
    SUPPLY,
    Kernel,
    Pairing,
    Proposal,
    Rule,
    TrajectoryProposal,
)
from mhrun.random import Draws
from mhrun.target import Target
from mhrun.types import Contest, Controls, Evaluation, Info, State, Trajectory, Verdict, choose
from mhrun.types.scale import Scale

DIVERGED = 1000.0  # loss of a trajectory's log-ratio above which it is said to diverge, as in Stan


def decision(rule: Rule, contest: Contest, draws: Draws) -> Verdict:
    """Return the verdict of a rule.

    Raises:
        Refusal: it returns something else, or `accepted` is not a boolean mask (C,).
    """
    name = f"decide of {type(rule).__name__}"
    try:
        verdict = rule.decide(contest, draws)
    except Refusal as error:
        raise Refusal(f"{name}: {error}") from error
    if not isinstance(verdict, Verdict):
        raise Refusal(f"{name} must return a Verdict: return contest.to_verdict(accepted).")
    return verdict


def disagree(rule: Rule, pairing: Pairing, target: Target) -> str | None:
    """Return why this rule cannot be used with this pairing, or None."""
    judge, scorer = type(rule).__name__, type(pairing).__name__
    if rule.wants != pairing.offers:
        if rule.wants == SUPPLY:
            return f"{judge} grows its minibatch, which {scorer} does not allow; choose pairing growing."
        if rule.wants == ARRIVALS:
            return f"{judge} thins Poisson arrivals, which {scorer} does not offer; choose pairing thinned."
        if rule.wants == ESTIMATES:
            return f"{judge} compares estimates kept with their points; choose pairing blocks."
        if pairing.offers == ESTIMATES:
            return f"{scorer} passes on estimates kept with their points; choose rule pseudo_marginal."
        return f"{scorer} leaves the minibatch to the rule, but {judge} needs a fixed one; choose another pairing."
    m = pairing.m
    if m is not None and 1 <= m < rule.min_batch and target.batches.error_share(m) > 0:
        return (
            f"{judge} must estimate the noise of a minibatch, which m = {m} does not allow; "
            f"choose m >= {rule.min_batch}."
        )
    return None


class MetropolisHastings(Kernel):
    """One Metropolis-Hastings step with any proposal, pairing and rule.

    The pairing and the rule together define the acceptance test: random_walk + full + metropolis is the
    original Metropolis algorithm, random_walk + shared + metropolis is MINT.

    Args:
        proposal: draws a candidate and returns its log-density.
        pairing: chooses the data on which the two points are evaluated.
        rule: accepts or rejects the candidate.

    Raises:
        Refusal: an object that does not derive from the base class of the part.
    """

    decides = True
    reversible = True
    proposal: Proposal
    pairing: Pairing
    rule: Rule

    @property
    def needs_noise(self) -> bool:
        """Whether the proposal's density degenerates at a noise temperature of 0."""
        return self.proposal.needs_noise

    @property
    def stationary(self) -> dict[str, Any] | None:
        """The stationary distribution as ``distribution`` and ``m`` (None: all data), or None if unknown."""
        distribution, m = self.pairing.stationary, self.pairing.m
        if self.rule.exact:
            distribution, m = "tempered", None
        elif distribution is None or not self.rule.keeps_ratio:
            return None
        if not self.proposal.keeps_balance or self.adapts:
            return None
        return {"distribution": distribution, "m": m}

    @property
    def pass_size(self) -> int | None:
        """The minibatch size, or that with which a sequential test begins; None if neither is known in advance."""
        if self.pairing.m_is_open:
            return None
        return self.rule.first_batch if self.pairing.m is None else self.pairing.m

    @property
    def is_sequential(self) -> bool:
        """Whether the rule chooses the number of data read."""
        return self.rule.wants_terms

    def __init__(self, proposal: Proposal, pairing: Pairing, rule: Rule) -> None:
        parts = ((proposal, "proposal", Proposal), (pairing, "pairing", Pairing), (rule, "rule", Rule))
        for part, kind, base in parts:
            if isinstance(part, type) and issubclass(part, base):
                raise Refusal(f"{part.__name__} is a class; give an instance of it: {part.__name__}().")
            if not isinstance(part, base):
                raise Refusal(
                    f"{type(part).__name__} of {type(part).__module__} is not a {kind}; those are in "
                    f"mhrun.{PACKAGES[kind]}, and a new one derives from mhrun.parts.{base.__name__}."
                )
            check_attributes(part)
        if not (limit := rule.noise_limit_of(math.inf)) > 0:
            raise Refusal(f"{type(rule).__name__}.noise_limit = {limit!r} must be positive.")
        self.proposal = proposal
        self.pairing = pairing
        self.rule = rule

    def with_m(self, m: int) -> Self:
        """Return a copy whose pairing has this minibatch size."""
        changed = copy.copy(self)
        changed.pairing = copy.copy(self.pairing)
        changed.pairing.m, changed.pairing.m_is_open = m, False
        return changed

    def with_leapfrog_steps(self, count: int) -> Self:
        """Return a copy whose trajectories have this number of leapfrog steps."""
        if not isinstance(self.proposal, TrajectoryProposal):
            return super().with_leapfrog_steps(count)
        changed = copy.copy(self)
        changed.proposal = self.proposal.filled(count)
        return changed

    def with_scale(self, scale: Scale) -> Self:
        """Return a copy whose proposal moves in scaled coordinates."""
        changed = copy.copy(self)
        follows = isinstance(self.proposal, TrajectoryProposal)
        changed.proposal = (PreconditionedTrajectory if follows else PreconditionedProposal)(
            self.proposal, scale
        )
        return changed

    def refuses(self, target: Target) -> str | None:
        """Return why the parts and the target are incompatible, or None."""
        if reason := disagree(self.rule, self.pairing, target):
            return reason
        pairing = type(self.pairing).__name__
        if self.pairing.offers != DIFFERENCE and self.proposal.gradients and self.pairing.gradient_m is None:
            # A test that corrects for minibatch noise cannot have the minibatch that drove the proposal.
            advice = ", or set pairing.gradient_m" if self.pairing.offers == ARRIVALS else ""
            return (
                f"{type(self.proposal).__name__} needs a minibatch gradient, and {pairing} draws its minibatch later; "
                f"choose a proposal without gradients{advice}."
            )
        if self.proposal.follows and (self.pairing.keeps_batch or self.pairing.hands_batch_on):
            return (
                f"{type(self.proposal).__name__} follows a trajectory on one set of data, and {pairing} evaluates the "
                "candidate on another minibatch; choose pairing full, or shared."
            )
        if self.proposal.gradients and target.gradient_noise:
            return (
                f"gradient_noise is for a dynamics: {type(self.proposal).__name__} needs the gradients of both points "
                "without it, or its densities are not those of its moves."
            )
        if self.pairing.offers != DIFFERENCE and target.common_batch:
            return "a minibatch that the rule chooses cannot be common to all chains: common_batch=false."
        return self._refuses_noise(target) or self.pairing.refuses(target)

    def _refuses_noise(self, target: Target) -> str | None:
        """Return why the minibatch noise is not what a rule that corrects for it assumes, or None.

        It must be independent of the two points: fresh in each step, and not that of the gradient that drove the move.
        """
        m = self.pairing.m
        if not self.rule.corrects_noise or m is None or not target.batches.error_share(m) > 0:
            return None
        rule = type(self.rule).__name__
        if self.pairing.keeps_batch or self.pairing.hands_batch_on:
            return (
                f"{rule} corrects for noise that is fresh in each step, but {type(self.pairing).__name__} keeps a "
                "minibatch from step to step; choose pairing shared."
            )
        if self.proposal.gradients:
            return (
                f"{rule} corrects for noise that is independent of the move, but {type(self.proposal).__name__} takes "
                "its gradient from the same minibatch; choose a proposal without gradients, or pairing full."
            )
        return None

    def separate_gradients(self) -> float:
        """Return the share of gradients between the ends of a trajectory, or all if they have a separate minibatch.

        Points are evaluated with their gradients: the candidate, and the current point unless it is kept.
        """
        if not self.proposal.gradients or self.pairing.gradient_m is not None:
            return 1.0
        between, ends = self.proposal.leapfrog_steps - 1, 2 if self.pairing.rescores else 1
        return between / (between + ends)

    def rounds(self, target: Target) -> int:
        """Return the rounds of the pairing, and one more for each gradient between the ends of a trajectory."""
        return self.pairing.rounds + self.proposal.leapfrog_steps - 1

    def reads(self, target: Target) -> int:
        """Return the data of the pairing, and those of the gradients along a trajectory."""
        between, m = self.proposal.leapfrog_steps - 1, self.pairing.gradient_m or self.pairing.m or target.n
        return self.pairing.reads(target) + between * m

    def start(self, target: Target, theta: Tensor, draws: Draws) -> State:
        """Return the initial state at theta (C, D)."""
        evaluation = self.pairing.start(target, theta, draws)
        keeps_batch = self.proposal.gradients or self.pairing.hands_batch_on or self.pairing.keeps_index
        if not keeps_batch:  # by the first step
            evaluation = evaluation._replace(batch=None)
        return State(evaluation._replace(log_lik=None, rows=None, n_lik=0, n_grad=0), {})

    def step(self, target: Target, state: State, controls: Controls, draws: Draws) -> tuple[State, Info]:
        """Move every chain one step.

        Raises:
            Refusal: a proposal returns candidates of another shape.
        """
        grad_temperature = controls.temperature if self.proposal.gradients else None
        origin = self.pairing.current(target, state.evaluation, draws, grad_temperature)
        path = self._followed(target, origin, controls, draws) if self.proposal.follows else None
        theta = self.proposal.sample(origin, controls, draws) if path is None else path.theta
        if theta.shape != origin.theta.shape:
            raise Refusal(_wrong_shape(self.proposal, "sample", "(C, D)", origin.theta.shape, theta))
        candidate, contest = self.contest(target, origin, theta, controls, draws, path)
        verdict = decision(self.rule, contest, draws)

        difference = contest.difference
        n_lik = origin.n_lik + candidate.n_lik + (0 if difference is None else difference.n_lik)
        n_grad = origin.n_grad + candidate.n_grad
        if path is not None:
            per_datum = 1 if self.pairing.gradient_m is None else target.gradients.per_datum
            n_grad += (self.proposal.leapfrog_steps - 1) * per_datum * _size(origin, target)
        evaluated = torch.full_like(verdict.batch_size, n_lik)
        n_lik_overhead = torch.zeros_like(evaluated)
        if (supply := contest.supply or contest.arrivals) is not None:
            n_lik_overhead = supply.n_lik_overhead
            evaluated = supply.evaluated(verdict.batch_size)
        # Diverging if a NaN caused the rejection; a log-ratio of -infinity is a valid rejection.
        diverging = verdict.log_ratio.isnan()
        if path is not None:  # a trajectory that is unstable where it leads
            lost = verdict.log_ratio < -DIVERGED
            # A test that reads data one by one rejects with -infinity, whatever is lost.
            if difference is None:
                lost &= verdict.log_ratio.isfinite()
            diverging = diverging | lost
        info = Info(
            accepted=verdict.accepted,
            log_ratio=verdict.log_ratio,
            log_ratio_var=verdict.log_ratio_var,
            batch_size=verdict.batch_size,
            n_lik=evaluated,
            n_lik_overhead=n_lik_overhead,
            n_grad=torch.full_like(verdict.batch_size, n_grad, dtype=torch.int64),
            diverging=diverging,
            log_ratio_skew=verdict.log_ratio_skew,
            violations=None if contest.arrivals is None else contest.arrivals.violations,
        )
        evaluation = choose(
            verdict.accepted, self._kept(candidate), self._kept(origin), on_host=draws.on_host
        )
        if self.pairing.hands_batch_on:
            evaluation = evaluation._replace(batch=candidate.batch)
        return State(evaluation, state.aux), info

    def _kept(self, point: Evaluation) -> Evaluation:
        """Return the fields of an evaluation that the next step needs."""
        if self.pairing.rescores:
            return Evaluation(point.theta, point.log_prior)
        batch = point.batch if self.pairing.keeps_index else None
        return point._replace(batch=batch, log_lik=None, rows=None, n_lik=0, n_grad=0)

    def _followed(self, target: Target, origin: Evaluation, controls: Controls, draws: Draws) -> Trajectory:
        """Return the trajectory of the proposal, on the data of the current point."""
        gradient = partial(target.gradients.full, temperature=controls.temperature)
        if origin.batch is not None:
            estimate = (
                target.gradients.minibatch if self.pairing.gradient_m is None else target.gradients.reduced
            )
            gradient = partial(estimate, index=origin.batch, temperature=controls.temperature)
        return cast(TrajectoryProposal, self.proposal).follow(origin, gradient, controls, draws)

    def contest(
        self,
        target: Target,
        origin: Evaluation,
        theta: Tensor,
        controls: Controls,
        draws: Draws,
        path: Trajectory | None = None,
    ) -> tuple[Evaluation, Contest]:
        """Return the evaluation of the candidates theta (C, D), and the contest with the origin.

        `path`: the trajectory that led to the candidates, if the proposal follows one.

        Raises:
            Refusal: a proposal returns densities of another shape.
        """
        grad_temperature = controls.temperature if self.proposal.gradients else None
        candidate, comparison = self.pairing.compare(target, origin, theta, draws, grad_temperature)

        offset = target.prior_power(controls.temperature) * (candidate.log_prior - origin.log_prior)
        if path is not None:
            offset = offset + cast(TrajectoryProposal, self.proposal).log_ratio(path, candidate, controls)
        elif (densities := self.proposal.log_density_ratio(origin, candidate, controls)) is not None:
            if densities.shape != offset.shape:
                raise Refusal(_wrong_shape(self.proposal, "log_density", "(C,)", offset.shape, densities))
            offset = offset + densities
        elif self.proposal.gradients:  # without a finite gradient the chain could not leave the candidate
            assert candidate.grad is not None
            offset = offset.masked_fill(~candidate.grad.isfinite().all(-1), torch.nan)
        scale = (target.n / controls.temperature).double()
        return candidate, Contest.of(comparison, scale, offset)


def _wrong_shape(proposal: Proposal, method: str, shape: str, expected: torch.Size, found: Tensor) -> str:
    return (
        f"{type(proposal).__name__}.{method} returns {shape}, here {tuple(expected)}, not a tensor of shape "
        f"{tuple(found.shape)}."
    )


def _size(point: Evaluation, target: Target) -> int:
    """Return the number of data that a point is evaluated on."""
    return target.n if point.batch is None else point.batch.shape[-1]
