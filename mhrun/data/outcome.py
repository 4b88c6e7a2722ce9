"""The outcome of a table: its column and its values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mhrun.data.columns import CLASSES, check_decimals, check_few_texts, few, levels_of
from mhrun.data.missing_values import MissingValues
from mhrun.data.table_file import read_table
from mhrun.errors import UserError, nearest
from mhrun.paths import located


def outcome_of(
    path: Path, target: str | None, separator: str | None = None, missing_values: MissingValues = ()
) -> tuple[str, list[Any]]:
    """Return the column of the outcome, the last if none is named, and its first values, each once: at most 21.

    Raises:
        UserError: there is no such column, it has one value, or more than 20 that are not numbers.
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
    if len(levels) < 2:
        raise UserError(
            f"{path.name}: column '{target}'{by_default} has no two values; choose another outcome."
        )
    if len(levels) > CLASSES and frame[target].dtype.kind not in "iuf":
        check_few_texts(frame[target].dropna(), path)
        raise UserError(
            f"{path.name}: column '{target}'{by_default} holds {len(levels):,} categories ({few(levels)}); "
            f"an outcome is at most {CLASSES} categories, or numbers."
        )
    return target, levels[: CLASSES + 1]
