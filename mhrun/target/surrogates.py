"""The surrogates that a target can have, by name."""

from __future__ import annotations

from collections.abc import Callable

from mhrun.data import Dataset
from mhrun.errors import Refusal, check_choice
from mhrun.native import native_form
from mhrun.target.lower_bound import LowerBound
from mhrun.target.surrogate import Surrogate
from mhrun.types import Model

_TAYLOR = ("taylor1", "taylor2")
_LOWER = ("lower_bound", "lower_bound_untuned")
SURROGATES = ("none", *_TAYLOR, *_LOWER)
"""Values of the target's setting `surrogate`."""


def surrogate_of(name: str, model: Model, read: Callable[[], Dataset]) -> Surrogate | None:
    """Return the surrogate called `name`, or None for ``none``.

    Raises:
        Refusal: an unknown name, or a model without lower bounds.
    """
    check_choice("surrogate", name, SURROGATES)
    if name in _TAYLOR:
        return Surrogate(model, read, 1 + _TAYLOR.index(name))
    if name == "none":
        return None
    if native_form(model, "lower_bound", "log_lik") is None:
        raise Refusal(
            f"{type(model).__name__} has no lower bounds of its log-likelihood, which surrogate={name} and firefly "
            "Monte Carlo need; logistic, binomial, softmax and robust regression have them. For other methods "
            "choose surrogate=none, taylor1 or taylor2 (target.surrogate in a configuration)."
        )
    return LowerBound(model, read, tuned=name == _LOWER[0])
