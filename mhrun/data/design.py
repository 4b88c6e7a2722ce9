"""The design of a table: its columns of x, the exposure or trials and the groups, and these fields of any rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.array_types import Array
from mhrun.data.columns import check_decimals, few, numbers
from mhrun.data.outcome import Outcome
from mhrun.data.sizes import SIZES, size_of
from mhrun.data.table_roles import codes_of
from mhrun.errors import UserError, nearest


@dataclass(frozen=True)
class TableDesign:
    """How the fields of a table other than the target are made of its columns.

    Args:
        intercept: whether the first column of x is 1.
        numerical: the numerical columns.
        scales: the mean and the standard deviation of each of them that is standardised.
        categorical: categorical column -> its values, the baseline first.
        groups: column of groups -> its values.
        sizes: ``exposure`` or ``trials`` -> its column.
        outcome: how ``y`` is made of the outcome's column, which `fields` leaves out.
    """

    intercept: bool
    numerical: Sequence[str]
    scales: Mapping[str, tuple[float, float]]
    categorical: Mapping[str, Sequence[Any]]
    groups: Mapping[str, Sequence[Any]]
    sizes: Mapping[str, str]
    outcome: Outcome | None = None

    @property
    def names(self) -> list[str]:
        """The names of the columns of x."""
        indicators = [f"{name}={level}" for name, levels in self.categorical.items() for level in levels[1:]]
        return [*(["1"] if self.intercept else []), *self.numerical, *indicators]

    def fields(
        self, frame: Any, path: Path, rows: npt.NDArray[np.bool_] | slice = slice(None)
    ) -> dict[str, Array]:
        """Return the fields of rows of a table: x (n, D), exposure or trials (n,), codes of each column of groups (n,).

        Args:
            frame: a pandas DataFrame of the table, or of others with its columns.
            path: of its file, for messages.
            rows: of the frame, which are wanted.

        Raises:
            UserError: a value that is no number, or that the table does not have.
        """
        fields: dict[str, Array] = {}
        if names := self.names:
            # Column by column into its place: a table is large, and no copy of all of it is made.
            fields["x"] = np.empty((len(frame.index[rows]), len(names)))
            for k, values in enumerate(self._columns(frame, path)):
                fields["x"][:, k] = values[rows]
        for field, name in self.sizes.items():
            fields[field] = size_of(field, frame[name], path)[rows].copy()  # pandas lends it read-only
        for name, levels in self.groups.items():
            fields[name] = codes_of(frame[name], levels, path)[rows]
        return fields

    def _columns(self, frame: Any, path: Path) -> Iterator[Array]:
        """Yield the columns of x (n,), of all rows of the frame."""
        if self.intercept:
            yield np.ones(len(frame))
        for name in self.numerical:
            mean, sd = self.scales.get(name, (0.0, 1.0))
            yield (numbers(frame[name], path) - mean) / sd
        for name, levels in self.categorical.items():
            codes = codes_of(frame[name], levels, path)
            yield from ((codes == k).astype(np.float64) for k in range(1, len(levels)))

    def check_rows(self, frame: Any, path: Path) -> None:
        """Refuse new rows without a column of the design, or without one of its values.

        Raises:
            UserError: there are such.
        """
        for field, name in self.sizes.items():
            if name not in frame:
                size = SIZES[field]
                raise UserError(f"{path.name}: there is no column '{name}', the {field}, {size.purpose}.")
        if repeated := frame.columns[frame.columns.duplicated()].tolist():
            raise UserError(f"{path.name}: there are two columns '{repeated[0]}'; rename one.")
        for name in (*self.numerical, *self.categorical, *self.groups, *self.sizes.values()):
            check_column(name, frame, path)
        for name in self.numerical:
            check_decimals(frame[name], path)
            if texts := [value for value in frame[name] if isinstance(value, str)]:
                raise UserError(
                    f"{path.name}: column '{name}' holds the text {few(texts)}; give numbers, as the table has there."
                )


def check_column(name: str, frame: Any, path: Path) -> None:
    """Refuse new rows without a column, or without one of its values.

    Raises:
        UserError: there are such.
    """
    if name not in frame:
        raise UserError(f"{path.name}: there is no column '{name}'.{nearest(name, map(str, frame.columns))}")
    if (missing := frame[name].isna().to_numpy()).any():
        count = int(missing.sum())
        raise UserError(
            f"{path.name}: column '{name}' lacks a value in {count:,} row{'s' * (count != 1)}, first in data "
            f"row {int(missing.argmax()) + 1:,}."
        )
