"""Values of a table that stand for missing ones, such as -999 or unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.data.columns import is_decimal
from mhrun.errors import Refusal, UserError, nearest
from mhrun.numbers import is_number

MissingValues = Sequence[Any] | Mapping[str, Sequence[Any]]
"""Of all columns, or by column."""


def checked_values(values: Any) -> list[Any] | dict[str, list[Any]]:
    """Return the setting ``missing_values``: a list for all columns, or one for each of some.

    Raises:
        Refusal: a value that is neither a text nor a number.
    """
    if isinstance(values, Mapping):
        return {str(name): _checked(each) for name, each in values.items()}
    return _checked(values)


def _checked(values: Any) -> list[Any]:
    found = [values] if isinstance(values, str) or is_number(values) else list(values or ())
    for value in found:
        if not (is_number(value) or (isinstance(value, str) and value)):
            raise Refusal(
                f"missing_values has {value!r}, which is neither a text nor a number; put texts such as 'no', 'null' "
                "and '?' in quotes."
            )
    return found


def of_column(values: MissingValues, name: object) -> Sequence[Any]:
    """Return the values that stand for missing ones in a column."""
    return values.get(str(name), ()) if isinstance(values, Mapping) else values


def check_present(frame: Any, values: MissingValues, path: Path) -> None:
    """Refuse values that no cell has: of the table, or of the column that they are for.

    Raises:
        UserError: there is such a value, or no such column.
    """
    if not isinstance(values, Mapping):
        for value in values:
            if not any(_cells(frame.iloc[:, k], value).any() for k in range(frame.shape[1])):
                raise UserError(
                    f"{path.name}: no cell is {value!r}, which missing_values names; leave it out. Empty cells, and "
                    "texts such as NA, are missing values without it."
                )
        return
    names = list(map(str, frame.columns))
    for name, each in values.items():
        if name not in names:
            raise UserError(
                f"{path.name}: missing_values: there is no column '{name}'.{nearest(name, names)}"
            )
        for value in each:
            if not _cells(frame.iloc[:, names.index(name)], value).any():
                raise UserError(
                    f"{path.name}: no cell of '{name}' is {value!r}, which missing_values names; leave it out."
                )


def without_values(frame: Any, values: MissingValues) -> Any:
    """Return a DataFrame in which the cells that have one of some values are missing.

    A column of texts that was one for these cells only becomes one of numbers; whole numbers stay whole.
    """
    frame = frame.copy(deep=False)
    for k, name in enumerate(frame.columns):
        column = frame.iloc[:, k]
        found = [_cells(column, value) for value in of_column(values, name)]
        if not np.any(found):
            continue
        whole = column.astype("Int64") if column.dtype.kind == "i" else column
        kept = whole.mask(np.any(found, axis=0))
        if column.dtype.kind not in "biuf" and kept.dropna().map(is_decimal).all():
            kept = kept.map(float, na_action="ignore").astype("float64")
        frame.isetitem(k, kept)
    return frame


def _cells(column: Any, value: Any) -> npt.NDArray[np.bool_]:
    """Return which cells of a column are a value (n,): equal numbers, or equal texts."""
    number = np.nan
    with suppress(ValueError):
        number = float(value)
    if column.dtype.kind in "iuf":
        equal: npt.NDArray[np.bool_] = (column == number).fillna(False).to_numpy(bool)
        return equal
    cells: npt.NDArray[np.bool_] = (column.astype(str) == str(value)).to_numpy(bool)
    if np.isfinite(number):  # -999.0 in a column of texts with -999
        cells = cells | np.array([is_decimal(cell) and float(cell) == number for cell in column], bool)
    return cells
