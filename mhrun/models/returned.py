"""What a function of the user's must return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from mhrun.errors import UserError


def returned(value: Any, shape: tuple[int, ...], what: str) -> Tensor:
    """Return what a log-likelihood (C, m) or a log-prior (C,) over all chains returned, if it is one.

    Args:
        value: what the function returned, over all chains.
        shape: what it must be: (C, m) of a log-likelihood, (C,) of a log-prior.
        what: the function's name, for messages.

    Raises:
        UserError: it is no tensor, has another shape, or does not hold real floating-point numbers.
    """
    each = len(shape) > 1
    should = f"one value per datum, ({shape[1]},)" if each else "one number"
    hint = "do not sum or average over the data" if each else "sum it up"
    if not isinstance(value, Tensor):
        raise UserError(f"{what} must return {should}, as a tensor, and returned a {type(value).__name__}.")
    if tuple(value.shape) != shape:
        raise UserError(f"{what} must return {should}, and returned {tuple(value.shape[1:])}; {hint}.")
    if not value.is_floating_point():
        raise UserError(
            f"{what} must return floating-point numbers, and returned {value.dtype}; a log-density is a real number."
        )
    return value


@contextmanager
def unchanged(rows: Mapping[str, Tensor], what: str) -> Iterator[None]:
    """Refuse a function that changes the data in place, by the version counter that torch keeps of each tensor.

    Raises:
        UserError: a field was changed.
    """
    before = {name: field._version for name, field in rows.items()}
    yield
    for name, field in rows.items():
        if field._version != before[name]:
            raise UserError(
                f"{what} changes the field {name} of the data in place; work on a copy, which clone() makes."
            )
