"""Values of a table that stand for missing ones, such as -999 or unknown."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.data.columns import is_decimal
from mhrun.errors import Refusal, UserError
from mhrun.numbers import is_number


def checked_values(values: Any) -> list[Any]:
    """Return the setting ``missing_values`` as a list.

    Raises:
        Refusal: a value that is neither a text nor a number.
    """
    found = [values] if isinstance(values, str) or is_number(values) else list(values or ())
    for value in found:
        if not (is_number(value) or (isinstance(value, str) and value)):
            raise Refusal(
                f"missing_values has {value!r}, which is neither a text nor a number; put texts such as 'no' and "
                "'null' in quotes."
            )
    return found


def check_present(frame: Any, values: Sequence[Any], path: Path) -> None:
    """Refuse values that no cell of a table has.

    Raises:
        UserError: there is such a value.
    """
    for value in values:
        if not any(_cells(frame.iloc[:, k], value).any() for k in range(frame.shape[1])):
            raise UserError(
                f"{path.name}: no cell is {value!r}, which missing_values names; leave it out. Empty cells, and texts "
                "such as NA, are missing values without it."
            )


def without_values(frame: Any, values: Sequence[Any]) -> Any:
    """Return a DataFrame in which the cells that have one of some values are missing.

    A column of texts that was one for these cells only becomes one of numbers.
    """
    frame = frame.copy(deep=False)
    for k in range(frame.shape[1]):
        column = frame.iloc[:, k]
        cells = np.any([_cells(column, value) for value in values], axis=0)
        if not cells.any():
            continue
        kept = column.mask(cells)
        if column.dtype.kind not in "biuf" and kept.dropna().map(is_decimal).all():
            kept = kept.map(float, na_action="ignore").astype("float64")
        frame.isetitem(k, kept)
    return frame


def _cells(column: Any, value: Any) -> npt.NDArray[np.bool_]:
    """Return which cells of a column are a value (n,): equal numbers, or equal texts."""
    if column.dtype.kind not in "iuf":
        cells: npt.NDArray[np.bool_] = (column.astype(str) == str(value)).to_numpy(bool)
        return cells
    number = np.nan
    with suppress(ValueError):
        number = float(value)
    return (column == number).fillna(False).to_numpy(bool)
