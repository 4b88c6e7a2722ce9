"""Fields of the data that say what a count is of: the exposure, or the trials."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from mhrun.array_types import Array
from mhrun.data.columns import check_decimals, few, numbers
from mhrun.errors import UserError


class Size(NamedTuple):
    """One of these fields."""

    name: str  # in messages
    purpose: str
    family: str  # of the regression that reads it
    need: str  # what its values must be


SIZES = {
    "exposure": Size(
        "exposure",
        "which counts are proportional to",
        "Poisson",
        "it must be positive. If it is a logarithm, take its exponential.",
    ),
    "trials": Size(
        "number of trials", "which successes are out of", "binomial", "it must be a whole number from 0 on."
    ),
}


def size_of(field: str, column: Any, path: Path) -> Array:
    """Return the exposure of counts, or the trials that successes are out of, as float64.

    Raises:
        UserError: it has text, an exposure that is not positive, or trials that are no whole number from 0 on.
    """
    size = SIZES[field]
    check_decimals(column, path)
    if texts := sorted({value for value in column.tolist() if isinstance(value, str)}):
        raise UserError(
            f"{path.name}: the {size.name} '{column.name}' holds {few(texts)}; it must be a number."
        )
    values = numbers(column, path)
    wrong = values <= 0 if field == "exposure" else (values < 0) | (values % 1 != 0)
    if wrong.any():
        first = int(wrong.argmax())
        row = column.index[first] + 1
        raise UserError(
            f"{path.name}: the {size.name} '{column.name}' is {values[first]:g} in data row {row:,}; {size.need}"
        )
    return values
