"""The outcome of a table: its column and its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mhrun.array_types import Array
from mhrun.data.columns import (
    CLASSES,
    check_decimals,
    check_few_texts,
    few,
    is_decimal,
    is_label,
    levels_of,
    mean_and_sd,
    numbers,
)
from mhrun.data.missing_values import MissingValues
from mhrun.data.table_file import read_table
from mhrun.data.table_roles import codes_of
from mhrun.errors import UserError, nearest
from mhrun.paths import located

Kind = Literal["number", "class", "sign"]


@dataclass(frozen=True)
class Outcome:
    """How the field ``y`` of a table is made of the outcome's column.

    Args:
        column: its name.
        kind: ``number``; ``class``, the place of a value among `levels`; or ``sign``, +1 where it is `positive`, else
            -1.
        scale: mean and standard deviation of a number that is standardised; None: it is not.
        levels: the values of a class or sign.
        positive: the value of the sign +1.
    """

    column: str
    kind: Kind
    scale: tuple[float, float] | None = None
    levels: Sequence[Any] = ()
    positive: Any = None

    @property
    def facts(self) -> dict[str, Any]:
        """What a data set records of its outcome."""
        if self.kind == "class":
            return {"classes": list(self.levels)}
        if self.kind == "sign":
            return {"positive": self.positive}
        if self.scale is None:
            return {}
        return {"target": self.column, "target_mean": self.scale[0], "target_sd": self.scale[1]}

    def y(self, column: Any, path: Path) -> Array:
        """Return the field of a pandas column without missing values, of the table or of new rows: (n,).

        Raises:
            UserError: text where there are to be numbers, or a value that the table does not have.
        """
        if self.kind == "number":
            mean, sd = self.scale or (0.0, 1.0)
            values = _numbers(column, path, "and those of the table are numbers")
            return values if self.scale is None else (values - mean) / sd
        codes = codes_of(column, self.levels, path)
        if self.kind == "class":
            return codes
        return np.where(codes == list(self.levels).index(self.positive), np.int8(1), np.int8(-1))


def outcome_in(
    column: Any,
    kind: Kind,
    path: Path,
    *,
    train: npt.NDArray[np.bool_],
    standardise: bool,
    baseline: Any = None,
    positive: Any = None,
) -> Outcome:
    """Return how ``y`` is made of the outcome's column of a table.

    Args:
        column: of all complete rows.
        kind: of `Outcome`.
        path: of the table's file, for messages.
        train: the rows whose mean and standard deviation are used.
        standardise: whether a number is standardised.
        baseline: the first of the values; None: as they are sorted.
        positive: the value of the sign +1; None: the last.

    Raises:
        UserError: a constant column that is to be standardised, or signs of a column without two values.
    """
    name = str(column.name)
    if kind == "number":
        kinds = ["outcome=sign"] * (column.nunique() == 2) + ["outcome=class"]
        values = _numbers(column, path, f"no numbers; set {' or '.join(kinds)}")
        return Outcome(name, kind, mean_and_sd(values, train, name, path) if standardise else None)
    levels = levels_of(column, path, baseline)
    if kind == "class":
        if is_label(len(levels), len(column)):
            advice = "" if isinstance(levels[0], str) else "; set outcome=number"
            raise UserError(
                f"{path.name}: outcome=class: '{name}' has {len(levels):,} values in {len(column):,} rows, which are "
                f"no classes{advice}."
            )
        return Outcome(name, kind, levels=levels)
    positive = levels[-1] if positive is None else positive
    if len(levels) != 2 or positive not in levels:
        raise UserError(
            f"{path.name}: outcome=sign wants two values of '{name}', one of them {positive!r}; there are "
            f"{few(levels)}."
        )
    return Outcome(name, kind, levels=levels, positive=positive)


def _numbers(column: Any, path: Path, remark: str) -> Array:
    """Return the column of an outcome as float64; of one that is text, the message has a remark.

    Raises:
        UserError: it has text, or an infinite number.
    """
    check_decimals(column, path)
    if column.dtype.kind not in "biuf" and not all(map(is_decimal, column.tolist())):
        check_few_texts(column, path)
        levels = few(sorted(set(map(str, column.tolist()))))
        raise UserError(f"{path.name}: column '{column.name}', the outcome, holds {levels}, {remark}.")
    return numbers(column, path)


def outcome_of(
    path: Path,
    target: str | None,
    separator: str | None = None,
    missing_values: MissingValues = (),
    *,
    may_be_constant: bool = False,
) -> tuple[str, list[Any]]:
    """Return the column of the outcome, the last if none is named, and its first values, each once: at most 21.

    Args:
        path: of the table.
        target: the column.
        separator: see `mhrun.data.table.Table`.
        missing_values: likewise.
        may_be_constant: whether one value suffices, as for counts of different exposures or trials.

    Raises:
        UserError: there is no such column, it has one value or none, or more than 20 that are not numbers.
    """
    frame = read_table(located(str(path)), separator, missing_values)
    frame.columns = list(map(str, frame.columns))
    names = list(frame.columns)
    by_default = " (the last, as --outcome names none)" if target is None else ""
    target = names[-1] if target is None else target
    if target not in names:
        hint = nearest(target, names) or f" There are: {', '.join(names[:12])}{', ...' * (len(names) > 12)}."
        raise UserError(f"{path.name} has no column '{target}'.{hint}")
    if not len(frame):
        raise UserError(f"{path.name} has no rows but that of the names of columns; add data.")
    check_decimals(frame[target], path)
    levels = levels_of(frame[target].dropna(), path)
    if len(levels) < (1 if may_be_constant else 2):
        raise UserError(
            f"{path.name}: column '{target}'{by_default} has no {'' if may_be_constant else 'two '}values; choose "
            "another outcome."
        )
    if len(levels) > CLASSES and frame[target].dtype.kind not in "iuf":
        check_few_texts(frame[target].dropna(), path)
        raise UserError(
            f"{path.name}: column '{target}'{by_default} holds {len(levels):,} categories ({few(levels)}); "
            f"an outcome is at most {CLASSES} categories, or numbers."
        )
    return target, levels[: CLASSES + 1]
