"""The user's table, CSV or Parquet."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.array_types import Array
from mhrun.data.columns import check_decimals
from mhrun.data.dataset import Dataset
from mhrun.data.design import TableDesign, check_column
from mhrun.data.lazy import LazyData
from mhrun.data.levels_and_scales import levels_of_categories, levels_of_groups, scales_of_features
from mhrun.data.memory import check_memory
from mhrun.data.missing_values import checked_values, without_values
from mhrun.data.outcome import Outcome, outcome_in
from mhrun.data.table_facts import describe_missing, listed_counts, missing_counts
from mhrun.data.table_file import COPIES, read_table, texts_of_missing
from mhrun.data.table_roles import advice_on_texts, check_lists, check_plain_name, check_roles
from mhrun.data.table_settings import check_baselines, check_excluded, check_split
from mhrun.errors import Refusal, UserError, check_choice
from mhrun.paths import located

_OUTCOMES = ("number", "sign", "class")
_MISSING = ("refuse", "drop")
_PARTS = ("train", "test")
_MOST_CACHED = 2  # tables: the training and the test rows of one
# The last tables, by what identifies them
_cache: OrderedDict[str, tuple[Dataset, TableDesign]] = OrderedDict()


class Table(LazyData):
    """Rows of a table: ``x`` (n, D) float64, the features, and ``y`` (n,), the target.

    Columns of x: ones, with `intercept`; the numerical features, in their order; then, for each categorical column, an
    indicator of each of its values, in sorted order, but its baseline. With `exposure` or `trials`, a field of that
    name (n,). Of each column of `groups` a field of its name (n,) int64: 0 to G - 1 for its G values in sorted order.
    Texts are sorted whatever their case.

    Args:
        file: .csv, .tsv or .txt (also compressed), or .parquet (needs pyarrow); searched in the user's folders, then in
            the current folder.
        target: the column of y; None for a table without one.
        features: the numerical columns; None for all others. Those that are also in `categorical` are categories.
        categorical: the columns that are categories, as text or numbers.
        baselines: categorical column -> the value that has no indicator, with which the others are compared; and the
            target, if it is ``sign`` or ``class``, -> the value that is -1, or class 0. Of columns that are not named,
            the first in sorted order.
        exposure: the column of the exposure of counts, positive numbers, such as times of observation: the mean of a
            count is proportional to it. Read by `PoissonRegression`, and by functions as ``rows.exposure``.
        trials: the column of the trials of which the target counts the successes. Read by `BinomialRegression`, and by
            functions as ``rows.trials``.
        groups: columns whose values are groups, such as schools or patients, as text or numbers: codes, with which a
            multilevel model reads the effects of its groups, ``theta.effects[rows.school]``. `facts` has their values.
        outcome: type of y: ``number`` (float64); ``sign``, +1 or -1 of two values (int8); ``class``, 0 to K - 1 of K
            values in sorted order, but for a baseline (int64).
        positive: the value of the target that is +1; None for the later of the two in sorted order, or for the one that
            is not in `baselines`.
        standardise: whether numerical features are standardised to mean 0 and standard deviation 1 (divisor n) on the
            training rows.
        standardise_target: likewise for y; `facts` has its name, mean and standard deviation.
        intercept: whether the first column of x is 1.
        missing: if a row lacks a value, ``refuse`` the table or ``drop`` the row.
        missing_values: texts and numbers that stand for missing values: in any column, such as ``[unknown, -999]``, or
            by column, ``{income: [unknown], age: [-9]}``; some cell must have each. Empty cells, and texts such as NA,
            nan, None and null, are missing without being named.
        test_share: share of the rows, drawn by `seed`, that are test data.
        part: ``train`` or ``test``.
        seed: of the split.
        separator: of a text file; None to detect it.
        exclude: columns that are no features, where `features` is None.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        file: str,
        target: str | None = None,
        features: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        baselines: Mapping[str, Any] | None = None,
        exposure: str | None = None,
        trials: str | None = None,
        outcome: Literal["number", "sign", "class"] = "number",
        positive: Any = None,
        standardise: bool = True,
        standardise_target: bool = False,
        intercept: bool = False,
        missing: Literal["refuse", "drop"] = "refuse",
        test_share: float = 0.0,
        part: Literal["train", "test"] = "train",
        seed: int = 0,
        separator: str | None = None,
        exclude: Sequence[str] = (),
        groups: Sequence[str] = (),
        missing_values: Sequence[str | float] | Mapping[str, Sequence[str | float]] = (),
    ) -> None:
        check_choice("outcome", outcome, _OUTCOMES)
        check_choice("missing", missing, _MISSING)
        check_choice("part", part, _PARTS)
        check_split(test_share, part, seed)
        if standardise_target and outcome != "number":
            raise Refusal("standardise_target requires outcome = number.")
        check_lists(features=features, categorical=categorical, exclude=exclude, groups=groups)
        check_excluded(exclude, features)
        check_baselines(baselines or {}, categorical or (), target, outcome, positive)
        self.file = file
        self.target = target
        self.categorical = list(categorical or ())
        # A category has indicators, whether or not it is also named as a feature.
        self.features = None if features is None else [f for f in features if f not in self.categorical]
        self.exclude = list(exclude or ())
        self.baselines = dict(baselines or {})
        self.sizes = {
            field: column for field, column in (("exposure", exposure), ("trials", trials)) if column
        }
        self.groups = list(groups or ())
        self.outcome = outcome
        self.positive = positive
        self.standardise = standardise
        self.standardise_target = standardise_target
        self.intercept = intercept
        self.missing = missing
        self.missing_values = checked_values(missing_values)
        self.test_share = test_share
        self.part = part
        self.seed = seed
        self.separator = separator

    def _dataset(self) -> Dataset:
        return self._data_and_design[0]

    @cached_property
    def _data_and_design(self) -> tuple[Dataset, TableDesign]:
        """The data and their design, of a table of the same settings read before or read now.

        Methods of a run with targets of their own, and its report, each have a part of this class.
        """
        path = located(self.file)
        status = path.stat()
        content = {name: value for name, value in vars(self).items() if name != "file"}
        key = json.dumps([str(path.resolve()), status.st_mtime_ns, status.st_size, content], default=str)
        if key not in _cache:
            _cache[key] = self._read(path)
            while len(_cache) > _MOST_CACHED:
                _cache.popitem(last=False)
        _cache.move_to_end(key)
        return _cache[key]

    def _read(self, path: Path) -> tuple[Dataset, TableDesign]:
        frame = read_table(path, self.separator, self.missing_values)
        frame.columns = list(map(str, frame.columns))  # names of Parquet columns may be numbers
        chosen = self._columns(list(frame.columns))
        used = frame[[*chosen, *self.categorical, *self._numbers, *self.groups]]
        table = self._complete_rows(used, chosen, path)
        train = self._for_training(len(table))
        in_part = train if self.part == "train" else ~train
        if not in_part.any() or not train.any():
            raise UserError(f"{path.name}: {len(table):,} rows leave none for part = {self.part}.")
        design = self._design(table, chosen, train, path)
        width = len(design.names)
        check_memory(
            COPIES * 8 * len(table) * width, f"{path.name}, {width:,} columns of x,", "leave some out"
        )
        fields = self._fields(table, design, in_part, path)
        facts = self._facts(frame, used, table, design, path)
        words = f"{path.name}: {int(in_part.sum()):,} rows of {len(frame):,}, {width} columns of x"
        return Dataset(fields, words, facts), design

    def _fields(
        self, table: Any, design: TableDesign, in_part: npt.NDArray[np.bool_], path: Path
    ) -> dict[str, Tensor]:
        """Return the fields of the rows of the part: x and y first, whatever else there is."""
        fields = design.fields(table, path, in_part)
        if design.outcome is not None:
            fields["y"] = design.outcome.y(table[self.target], path)[in_part]
        fields = {name: fields[name] for name in ("x", "y") if name in fields} | fields
        return {name: _tensor(values) for name, values in fields.items()}

    def _facts(self, frame: Any, used: Any, table: Any, design: TableDesign, path: Path) -> dict[str, Any]:
        """Return the facts of the data, from the file's table, its columns in use, and the rows that lack no value."""
        facts: dict[str, Any] = {
            "features": [name for name in frame.columns if name not in self._others],  # also those left out
            "columns": design.names,
            "intercept": self.intercept,
            "rows": len(frame),
            "dropped": len(frame) - len(table),
            "missing": missing_counts(used),
            "dropped_texts": self._texts(frame, path) if len(frame) > len(table) else {},
            "scales": {name: list(scale) for name, scale in design.scales.items()},
            "baselines": {name: str(levels[0]) for name, levels in design.categorical.items()},
        }
        if design.outcome is not None:
            facts |= design.outcome.facts
        facts |= self.sizes
        if self.groups:
            facts["groups"] = {name: list(map(str, levels)) for name, levels in design.groups.items()}
        return facts

    def _complete_rows(self, table: Any, chosen: Sequence[str], path: Path) -> Any:
        """Return the rows that lack no value.

        Raises:
            UserError: there are others, and they are not to be dropped.
        """
        bad = table.isna().any(axis=1)
        if not bad.any() or self.missing == "drop":
            return table[~bad]
        for name in (*chosen, *self._numbers):
            check_decimals(table[name], path)
        listing = listed_counts(missing_counts(table))
        first = ", ".join(f"{i + 1:,}" for i in np.flatnonzero(bad.to_numpy())[:3])
        raise UserError(
            f"{path.name}: {int(bad.sum()):,} of {len(table):,} rows lack a value ({listing}), "
            f"first in data rows {first}; missing=drop leaves them out."
            f"{describe_missing(self._texts(table, path))}{advice_on_texts(table[chosen])}"
        )

    @property
    def _others(self) -> list[str]:
        """The columns that are no features: the target, the exposure, the trials, and those of groups."""
        return [name for name in (self.target, *self.sizes.values(), *self.groups) if name]

    def _texts(self, table: Any, path: Path) -> dict[str, str]:
        """Return the texts that count as missing in columns whose values may be any text."""
        columns = [
            *self.categorical,
            *self.groups,
            *([self.target] if self.target and self.target in table else []),
        ]
        return texts_of_missing(table, columns, path, self.separator, self.missing_values)

    def _design(
        self, table: Any, chosen: Sequence[str], train: npt.NDArray[np.bool_], path: Path
    ) -> TableDesign:
        levels = levels_of_categories(table, self.categorical, self.baselines, path)
        groups = levels_of_groups(table, self.groups, path)
        scales = scales_of_features(table, chosen, train, path, standardise=self.standardise)
        outcome = self._outcome(table, train, path)
        return TableDesign(self.intercept, chosen, scales, levels, groups, self.sizes, outcome)

    def _outcome(self, table: Any, train: npt.NDArray[np.bool_], path: Path) -> Outcome | None:
        if not self.target:
            return None
        settings = {"baseline": self.baselines.get(self.target), "positive": self.positive}
        return outcome_in(
            table[self.target],
            self.outcome,
            path,
            train=train,
            standardise=self.standardise_target,
            **settings,
        )

    def prepared(self, new: Any, *, outcome: bool = False) -> Dataset:
        """Return the fields of new rows, prepared as the table's: standardised by its means, with its indicators.

        Args:
            new: a DataFrame, a mapping from columns to values (a number is one row), or a file as of the table. Columns
                that the table does not use are ignored. The exposure and the trials are among those that it uses.
            outcome: whether ``y`` is among the fields; otherwise the target's column is ignored too.

        Raises:
            UserError: a column is missing, lacks a value, or has a category that the table does not have.
        """
        data, design = self._data_and_design
        frame, path = self._frame_of(new)
        design.check_rows(frame, path)
        if not (fields := design.fields(frame, path)):
            raise UserError(f"{self.file} is read without features, of which new rows could have others.")
        if outcome:
            if design.outcome is None:
                raise UserError(f"{self.file} is read without an outcome; set target to its column.")
            check_column(design.outcome.column, frame, path)
            fields["y"] = design.outcome.y(frame[design.outcome.column], path)
        tensors = {name: _tensor(values) for name, values in fields.items()}
        return Dataset(tensors, f"{len(frame):,} new rows", data.facts)

    def _frame_of(self, new: Any) -> tuple[Any, Path]:
        """Return new rows as a DataFrame, and the name of their source for messages; see `prepared`."""
        import pandas as pd

        path = Path("the new rows")
        if isinstance(new, str | Path):
            path = located(str(new))
            frame = read_table(path, self.separator)
        elif isinstance(new, Mapping):
            frame = pd.DataFrame(
                new if any(np.ndim(v) for v in new.values()) else {k: [v] for k, v in new.items()}
            )
        elif isinstance(new, pd.DataFrame):
            frame = new.infer_objects()  # one row of a frame, as a column that is turned, holds objects
        else:
            raise UserError(f"New rows of {self.file} are a DataFrame, a mapping of its columns, or a file.")
        frame = frame.rename(columns=str).reset_index(drop=True)  # messages name rows by their place
        return without_values(frame, self.missing_values) if self.missing_values else frame, path

    @property
    def _numbers(self) -> list[str]:
        """The columns of numbers besides those of x."""
        return [name for name in (*self.sizes.values(), self.target) if name]

    def _columns(self, names: list[str]) -> list[str]:
        """Return the numerical features, after checking that all columns exist and can be named in a configuration."""
        roles: dict[str, list[str]] = {
            "features": self.features or [],
            "categorical": self.categorical,
            "groups": self.groups,
            "exclude": self.exclude,
            **{field: [column] for field, column in self.sizes.items()},
            "target": [self.target] if self.target else [],
        }
        check_roles(self.file, names, roles)
        declared = [name for columns in roles.values() for name in columns]
        features = (
            [name for name in names if name not in declared] if self.features is None else self.features
        )
        for name in (*features, *self.categorical, *self.groups, *self._numbers):
            check_plain_name(name, f"{self.file}: column")
        return features

    def _for_training(self, n: int) -> npt.NDArray[np.bool_]:
        order = np.random.default_rng(self.seed).permutation(n)
        train = np.ones(n, bool)
        train[order[: round(self.test_share * n)]] = False
        return train


def _tensor(values: Array) -> Tensor:
    """Return an array as a tensor; a column of a frame, which must not be written to, as a copy."""
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))
