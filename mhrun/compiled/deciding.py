"""Pieces that accept or reject."""

from __future__ import annotations

from functools import cache
from typing import Any

from mhrun.native import NativeDecision, Piece, native_form, piece
from mhrun.native.philox import ACCEPT, uniform
from mhrun.parts import Rule


def decision_of(rule: Rule) -> NativeDecision | None:
    """Return the deciding piece of a rule, made from its threshold if it gives one; None if it has no compiled form."""
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
