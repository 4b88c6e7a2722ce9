"""The compiled forms of the parts of a Metropolis-Hastings kernel."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from mhrun.kernels import MetropolisHastings
from mhrun.native import (
    NativeDecision,
    NativeGradientProposal,
    NativePairing,
    NativeProposal,
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


class GradientForms(NamedTuple):
    """What moves the chains along gradients, and scores them."""

    proposal: NativeGradientProposal
    pairing: NativePairing


def forms_of(kernel: MetropolisHastings) -> Forms | None:
    """Return the compiled forms of a kernel's proposal and pairing; None if one has none, or moves need gradients."""
    proposal, pairing = _proposal(kernel), _pairing(kernel)
    if pairing is None or not isinstance(proposal, NativeProposal):
        return None
    return Forms(proposal, pairing)


def gradient_forms_of(kernel: MetropolisHastings) -> GradientForms | None:
    """Return those of a kernel whose proposal has gradients; None if one of them has none."""
    proposal, pairing = _proposal(kernel), _pairing(kernel)
    if pairing is None or not isinstance(proposal, NativeGradientProposal):
        return None
    return GradientForms(proposal, pairing)


def _proposal(kernel: MetropolisHastings) -> NativeProposal | NativeGradientProposal | None:
    form = native_form(kernel.proposal, "native", "sample", "log_density", "log_density_ratio")
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
