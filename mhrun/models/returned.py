"""Checks of what a user's function returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from mhrun.errors import UserError


def returned(value: Any, shape: tuple[int, ...], what: str) -> Tensor:
    """Return `value` after checking that it is a log-likelihood (C, m) or a log-prior (C,).

    Args:
        value: the returned value, for all chains.
        shape: the required shape: (C, m) for a log-likelihood, (C,) for a log-prior.
        what: the function's name, for messages.

    Raises:
        UserError: it is not a tensor, has another shape, or is not of a real floating-point type.
    """
    per_datum = len(shape) > 1
    expected = f"one value per datum, ({shape[1]},)" if per_datum else "one number"
    hint = "do not sum or average over the data" if per_datum else "sum it up"
    if per_datum and isinstance(value, Tensor) and value.dim() == 3 and shape[1] in value.shape[1:]:
        hint = "a column (m, 1) beside a vector (m,) makes a matrix: give such a field as (n,), or write .squeeze(-1)"
    value = tensor(value, what, expected)
    if tuple(value.shape) != shape:
        raise UserError(f"{what} must return {expected}, and returned {tuple(value.shape[1:])}; {hint}.")
    if not value.is_floating_point():
        raise UserError(
            f"{what} must return floating-point numbers, and returned {value.dtype}; a log-density is a real number."
        )
    return value


def tensor(value: Any, what: str, expected: str) -> Tensor:
    """Return `value` after checking that it is a tensor, of what is `expected`.

    Raises:
        UserError: it is something else.
    """
    if value is None:
        raise UserError(
            f"{what} returns nothing, and must return {expected}; is its return statement missing?"
        )
    if not isinstance(value, Tensor):
        raise UserError(f"{what} must return {expected}, as a tensor, and returned a {type(value).__name__}.")
    return value


@contextmanager
def unchanged(rows: Mapping[str, Tensor], what: str) -> Iterator[None]:
    """Detect a function that changes the data in place, by torch's version counter of each tensor.

    Raises:
        UserError: a field was changed.
    """
    versions = {name: field._version for name, field in rows.items()}
    yield
    for name, field in rows.items():
        if field._version != versions[name]:
            raise UserError(
                f"{what} changes the field {name} of the data in place, and data must not be changed: write "
                f"{name} = batch.{name} - 1, not batch.{name}.sub_(1), or change a copy, batch.{name}.clone()."
            )
