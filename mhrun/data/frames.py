"""Columns of a pandas DataFrame as fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.errors import UserError


def is_frame(data: Any) -> bool:
    """Return whether `data` is a pandas DataFrame; pandas is not imported for it."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def is_series(data: Any) -> bool:
    """Return whether `data` is a pandas Series."""
    return (
        type(data).__module__.partition(".")[0] == "pandas"
        and hasattr(data, "to_frame")
        and not is_frame(data)
    )


def columns_of(frame: Any) -> dict[str, npt.NDArray[Any]]:
    """Return each column of a DataFrame as an array (n,), by its name.

    Raises:
        UserError: a column that has no numbers, or lacks some; or two of one name.
    """
    names = [str(name) for name in frame.columns]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"the table has two columns '{repeated[0]}'; rename one.")
    return {name: numbers(frame.iloc[:, i], name) for i, name in enumerate(names)}


def check_indices(fields: Mapping[str, Any]) -> None:
    """Refuse Series and DataFrames of other indices: rows are paired by their places, not by their labels.

    Raises:
        UserError: two of the fields have the same number of rows, and other labels.
    """
    of_pandas = [(name, value) for name, value in fields.items() if is_frame(value) or is_series(value)]
    for name, value in of_pandas[1:]:
        first, other = of_pandas[0]
        if len(value) == len(other) and not value.index.equals(other.index):
            raise UserError(
                f"'{first}' and '{name}' have different indices, and rows are paired by their places. If places are "
                f"what pairs them, give reset_index(drop=True) of both; else sort one by the other, such as by "
                f"{name}.loc[{first}.index]."
            )


def numbers(column: Any, name: str) -> npt.NDArray[Any]:
    """Return a Series as an array (n,).

    Raises:
        UserError: it has no numbers, or lacks some.
    """
    missing = int(column.isna().sum())
    if missing:
        raise UserError(
            f"column '{name}' lacks {missing:,} of {len(column):,} values; leave their rows out with dropna(), or "
            "fill them."
        )
    kind = getattr(column.dtype, "kind", "O")
    if kind not in "biuf":
        remedy = f"pandas.get_dummies(table, columns=['{name}'], dtype=float)"
        if name == "y":  # the outcome
            remedy = "their codes, y.astype('category').cat.codes"
        raise UserError(
            f"column '{name}' holds {column.dtype} values; make numbers of them, for categories with {remedy}."
        )
    return np.asarray(column.to_numpy(dtype={"b": "bool", "i": "int64", "u": "uint64", "f": "float64"}[kind]))


def matrix(frame: Any, name: str) -> npt.NDArray[Any]:
    """Return the columns of a DataFrame (n, k) as float64, or a Series (n,), as the field `name`.

    Raises:
        UserError: it has no columns, or values that are no numbers.
    """
    if is_series(frame):
        return numbers(frame, name)
    columns = columns_of(frame)
    if not columns:
        raise UserError(f"field '{name}' is a table without columns.")
    return np.column_stack([column.astype(np.float64) for column in columns.values()])
