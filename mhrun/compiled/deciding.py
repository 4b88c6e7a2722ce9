"""Deciding pieces: from a log-ratio to yes or no."""

from __future__ import annotations

from functools import cache
from typing import Any

from mhrun.native import NativeDecision, Piece, native_form, piece
from mhrun.native.philox import ACCEPT, uniform
from mhrun.parts import Rule


def decision_of(rule: Rule) -> NativeDecision | None:
    """Return the deciding piece of a rule, also of one that states a threshold; None if it has none."""
    form = native_form(rule, "native", "decide")
    found: NativeDecision | Piece | None = form() if form is not None else None
    if found is None or isinstance(found, NativeDecision):
        return found
    return NativeDecision((), by_threshold(found))


@cache
def by_threshold(threshold: Piece) -> Piece:
    """Return the deciding piece of a rule that accepts iff ``threshold(u)`` is below the log-ratio."""

    @piece
    def decide(args: Any, log_ratio: Any, noise: Any, size: Any, draw: Any) -> Any:
        return threshold(uniform(ACCEPT, draw)) < log_ratio

    return decide
