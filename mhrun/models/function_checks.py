"""Checks of the functions that a model is made of, before they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from mhrun.errors import Refusal
from mhrun.models.explained import called, place_of


def check_arguments(what: str, function: Callable[..., Any], *names: str, hint: str = "") -> None:
    """Refuse a function that cannot be called with arguments in the places of these names.

    Functions whose parameters Python does not know, such as those written in C, pass.

    Raises:
        Refusal: it takes fewer arguments, or needs more. `hint` ends the message.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        raise Refusal(
            f"{called(what, function)}{place_of(function)} has the arguments {_listed(signature)}, and is called with "
            f"({', '.join(names)}){hint}."
        ) from error


def check_mean(mean: object, family: str | None) -> None:
    """Refuse a mean that is no function, and a family that is unknown or has no mean.

    Raises:
        Refusal: see above.
    """
    if mean is not None and not callable(mean):
        raise Refusal(f"mean = {mean!r} must be a function (theta, rows) -> (m,).")
    if family not in (None, "poisson", "binomial"):
        raise Refusal(f"family = {family!r} is unknown; choose poisson or binomial, or leave it out.")
    if family is not None and mean is None:
        raise Refusal(f"family = {family} requires mean, a function (theta, rows) -> (m,).")


def _listed(signature: inspect.Signature) -> str:
    """Return the parameters of a function without annotations."""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(bare))
