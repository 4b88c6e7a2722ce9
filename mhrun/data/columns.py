"""Columns of a table as numbers and categories."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from mhrun.array_types import Array
from mhrun.data.advice import list_setting
from mhrun.errors import UserError
from mhrun.numbers import is_number

CLASSES = 20
"""The most values of an outcome that are classes."""


_MOST_BAD = 0.2  # share of the cells of a column that are no numbers, above which it is text
_MOST_CODES = 3  # texts of a column of numbers that may stand for missing values


_WITH_COMMA = re.compile(r"\s*[+-]?\d*(,\d+(e[+-]?\d+)?|(,\d{3})+(\.\d*)?)\s*", re.IGNORECASE)


_MONTH, _DAY = r"(0?[1-9]|1[0-2])", r"(0?[1-9]|[12]\d|3[01])"
_DATE = re.compile(rf"(\d{{4}}-{_MONTH}-{_DAY}|{_DAY}[./-]{_DAY}[./-]\d{{4}})([ T].*)?")


def check_decimals(column: Any, path: Path) -> None:
    """Refuse a column whose non-numeric cells are all numbers with commas.

    Raises:
        UserError: it is such a column.
    """
    if column.dtype.kind in "biuf":
        return
    text = (v for v in column.dropna().tolist() if not is_decimal(v))
    first = next(text, None)
    if _has_comma(first) and all(map(_has_comma, text)):
        raise UserError(
            f"{path.name}: column '{column.name}' holds {first!r}, which looks like a number with a comma; if it is "
            f"decimal, write decimal points ({first.strip().replace(',', '.')}), such as by pandas.read_csv(..., "
            "decimal=',').to_csv(..., index=False); if it separates thousands, use thousands=',' there."
        )


def _has_comma(value: Any) -> TypeGuard[str]:
    """Return whether a value is the text of a number with commas."""
    return isinstance(value, str) and _WITH_COMMA.fullmatch(value) is not None


def check_few_texts(column: Any, path: Path) -> None:
    """Refuse a column of numbers in which a few cells are none.

    Raises:
        UserError: it is such a column.
    """
    if not (bad := _few_texts(column)):
        return
    row, value = bad[0]
    tail = f" and {len(bad) - 1:,} more are not numbers" if len(bad) > 1 else " is not a number"
    advice = ""
    if texts := codes_of_missing(column):
        setting = list_setting(f"missing_values.{column.name}", texts)
        advice = f"; if they stand for missing values, {setting} missing=drop leaves their rows out"
    raise UserError(
        f"{path.name}: column '{column.name}': {value!r} in data row {row + 1:,}{tail} "
        f"({len(column) - len(bad):,} others are){advice}."
    )


def codes_of_missing(column: Any) -> list[str]:
    """Return the texts of a column of numbers that may stand for missing values: those of a few cells, if alike."""
    texts = list(dict.fromkeys(str(value) for _, value in _few_texts(column)))
    return texts if len(texts) <= _MOST_CODES else []


def _few_texts(column: Any) -> list[tuple[int, Any]]:
    """Return the places and values of the cells that are no numbers, if they are few and the others are numbers."""
    if column.dtype.kind in "biuf":
        return []
    bad = [(i, v) for i, v in zip(column.index, column.tolist(), strict=True) if not is_decimal(v)]
    return bad if len(bad) <= _MOST_BAD * len(column) else []


def numbers(column: Any, path: Path) -> Array:
    """Return a column as float64.

    Raises:
        UserError: it has text, or an infinite number.
    """
    check_decimals(column, path)
    if column.dtype.kind not in "biuf":
        check_few_texts(column, path)
        text = [v for v in column.tolist() if not isinstance(v, int | float)]
        levels = sorted(set(map(str, text or column.tolist())))
        roles = (
            []
            if is_label(len(levels), len(column))
            else [f"set {list_setting('categorical', [column.name])}"]
        )
        if CLASSES < len(levels) <= len(column) / 2:
            roles.append(f"{list_setting('groups', [column.name])} for a multilevel model")
        roles.append(f"leave it out with {list_setting('exclude', [column.name])}")
        what = f"{few(levels)}, no numbers"
        if levels and all(map(_DATE.fullmatch, levels)):
            what = f"dates ({few(levels)}), no numbers"
            roles.append("add a column of numbers for it, such as the days since the first")
        raise UserError(f"{path.name}: column '{column.name}' holds {what}; {', or '.join(roles)}.")
    values: Array = column.to_numpy(np.float64)
    if not np.isfinite(values).all():
        row = column.index[int((~np.isfinite(values)).argmax())] + 1
        raise UserError(f"{path.name}: column '{column.name}' holds an infinite number in data row {row:,}.")
    return values


def is_label(levels: int, rows: int) -> bool:
    """Return whether a column with this many distinct values in this many rows holds names or dates, not categories."""
    return levels > max(CLASSES, rows / 2)


def is_decimal(value: Any) -> bool:
    """Return whether a cell is a number, or a text that Python reads as one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def mean_and_sd(values: Array, train: npt.NDArray[np.bool_], name: str, path: Path) -> tuple[float, float]:
    """Return the mean and the standard deviation of the training rows of a column that is to be standardised.

    Raises:
        UserError: they are constant, or too large.
    """
    training = values[train]
    if training.min() == training.max():  # where the deviation from the mean may be rounding
        raise UserError(
            f"{path.name}: column '{name}' is {training[0]:g} in every row, which cannot be standardised; "
            f"leave it out with {list_setting('exclude', [name])}."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = float(training.mean()), float(training.std())
    if not 0 < sd < np.inf:
        raise UserError(
            f"{path.name}: column '{name}' is too large or too small to be standardised; scale it."
        )
    return mean, sd


def levels_of(column: Any, path: Path, baseline: Any = None) -> list[Any]:
    """Return the values of a column, each once, in sorted order, but for the baseline, if one is named: it is first.

    Texts are in alphabetical order, whatever the case of their letters: "no" is before "Yes". Whole numbers are int,
    also of a column of floats.

    Raises:
        UserError: values that have no order, or the baseline is none of them.
    """
    try:
        levels = sorted(set(column.tolist()), key=_in_order)
    except TypeError as error:
        raise UserError(
            f"{path.name}: column '{column.name}' holds {type(column.iloc[0]).__name__} values, which are no "
            "categories."
        ) from error
    # A missing cell makes whole numbers float: their names are those that they have in a column without one.
    if all(isinstance(level, float) and level.is_integer() for level in levels):
        levels = [int(level) for level in levels]
    if baseline is None:
        return levels
    first = [level for level in levels if level == baseline or _means_level(str(baseline), level)]
    if not first:
        raise UserError(
            f"{path.name}: column '{column.name}' has no value {baseline!r}, its baseline; it has {few(levels)}."
        )
    return [first[0], *(level for level in levels if level != first[0])]


def _in_order(value: Any) -> tuple[Any, ...]:
    return (str(type(value)), *([value.casefold()] if isinstance(value, str) else []), value)


def _means_level(text: str, level: Any) -> bool:
    """Return whether a text, as given on the command line, denotes a value of a column."""
    if is_number(level):
        with suppress(ValueError):
            return float(text) == level
    return text == str(level) or (isinstance(level, bool | np.bool_) and text.lower() == str(level).lower())


def few(values: Iterable[Any]) -> str:
    """Return the first four values for a message."""
    shown = [repr(v) for v in values]
    return ", ".join(shown[:4]) + ", ..." * (len(shown) > 4)
