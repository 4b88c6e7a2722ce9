"""The compiled forms of the parts of a Metropolis-Hastings kernel."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from mhrun.kernels import MetropolisHastings
from mhrun.kernels.metropolis_hastings import DIVERGED
from mhrun.native import (
    FollowedPath,
    NativeDecision,
    NativeGradientProposal,
    NativePairing,
    NativeProposal,
    NativeTrajectory,
    Piece,
    native_form,
    piece,
)
from mhrun.native.philox import ACCEPT, uniform
from mhrun.parts import Rule


class Forms(NamedTuple):
    """What moves and scores the chains."""

    proposal: NativeProposal
    pairing: NativePairing


class GradientMove(NamedTuple):
    """A move along gradients: of a trajectory, or of one gradient, which needs no momenta."""

    args: tuple[Any, ...]
    # See `mhrun.native.forms.NativeTrajectory`
    follower: Callable[[Piece], Piece]
    # (args, origin, candidate, grad, grad at the candidate, path: FollowedPath, controls) -> log-ratio
    log_ratio: Piece
    between: int = 0  # gradients between the ends
    lost: float = -math.inf  # log-ratio below which it diverges


class GradientForms(NamedTuple):
    """What moves the chains along gradients, and scores them."""

    move: GradientMove
    pairing: NativePairing


def forms_of(kernel: MetropolisHastings) -> Forms | None:
    """Return the compiled forms of a kernel's proposal and pairing; None if one has none, or moves need gradients."""
    proposal, pairing = _proposal(kernel), _pairing(kernel)
    if pairing is None or not isinstance(proposal, NativeProposal):
        return None
    return Forms(proposal, pairing)


def gradient_forms_of(kernel: MetropolisHastings) -> GradientForms | None:
    """Return the forms of a kernel whose proposal has gradients; None if its proposal or pairing has none."""
    proposal, pairing = _proposal(kernel), _pairing(kernel)
    if pairing is None or proposal is None or isinstance(proposal, NativeProposal):
        return None
    if isinstance(proposal, NativeTrajectory):
        args, follower, log_ratio, between = proposal
        return GradientForms(
            GradientMove(args, follower, _ratio_of_momenta(log_ratio), between, -DIVERGED), pairing
        )
    args, propose, log_ratio = proposal
    return GradientForms(
        GradientMove(args, _without_trajectory(propose), _ratio_of_points(log_ratio)), pairing
    )


@cache
def _without_trajectory(propose: Piece) -> Callable[[Piece], Piece]:
    """Return the follower of a move that needs no gradient between its ends."""

    @piece
    def follow(
        args: Any, data: Any, origin: Any, grad: Any, controls: Any, draw: Any, out: Any, momenta: Any
    ) -> Any:
        propose(args, origin, grad, controls, draw, out)
        return FollowedPath(momenta, controls.step_size)

    return lambda gradient: follow


@cache
def _ratio_of_points(log_ratio: Piece) -> Piece:
    """Return the log-ratio of a move, from that of a proposal with a density."""

    @piece
    def ratio(args: Any, origin: Any, candidate: Any, here: Any, there: Any, path: Any, controls: Any) -> Any:
        return log_ratio(args, origin, candidate, here, there, controls)

    return ratio


@cache
def _ratio_of_momenta(log_ratio: Piece) -> Piece:
    """Return the log-ratio of a move, from that of a trajectory."""

    @piece
    def ratio(args: Any, origin: Any, candidate: Any, here: Any, there: Any, path: Any, controls: Any) -> Any:
        return log_ratio(args, path, there, controls)

    return ratio


def _proposal(
    kernel: MetropolisHastings,
) -> NativeProposal | NativeGradientProposal | NativeTrajectory | None:
    plain = ("sample", "log_density", "log_density_ratio", "follow", "log_ratio")
    form = native_form(kernel.proposal, "native", *plain)
    return None if form is None else form()


def _pairing(kernel: MetropolisHastings) -> NativePairing | None:
    form = native_form(kernel.pairing, "native", "start", "current", "compare")
    return None if form is None else form()


def decision_of(rule: Rule) -> NativeDecision | None:
    """Return the deciding piece of a rule, made from its threshold if it gives one; None if it has no compiled form."""
    form = native_form(rule, "native", "decide")
    native: NativeDecision | Piece | None = form() if form is not None else None
    if native is None or isinstance(native, NativeDecision):
        return native
    return NativeDecision((), by_threshold(native))


@cache
def by_threshold(threshold: Piece) -> Piece:
    """Return the deciding piece of a rule that accepts iff ``threshold(u)`` is below the log-ratio."""

    @piece
    def decide(args: Any, log_ratio: Any, noise: Any, size: Any, draw: Any) -> Any:
        return threshold(uniform(ACCEPT, draw)) < log_ratio

    return decide
