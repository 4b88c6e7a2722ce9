"""The user's table, CSV or Parquet."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mhrun.data.columns import check_decimals, few, is_label, levels_of, numbers, standardised
from mhrun.data.dataset import Dataset
from mhrun.data.memory import check_memory
from mhrun.data.table_facts import features_of
from mhrun.data.table_file import COPIES, read_table
from mhrun.data.table_roles import check_roles, check_word, codes_of, exposure_of
from mhrun.errors import Refusal, UserError, nearest
from mhrun.paths import located

Array = npt.NDArray[Any]

_OUTCOMES = ("number", "sign", "class")
_PARTS = ("train", "test")
_KEPT = 2  # tables that are kept: the training and the test rows of one
# The last tables, by what identifies them
_tables: OrderedDict[str, tuple[Dataset, dict[str, list[Any]]]] = OrderedDict()


class Table:
    """Rows of a table: ``x`` (n, D) float64, the features, and ``y`` (n,), the target.

    Columns of x: ones, with `intercept`; the numerical features, in their order; then, for each categorical column, an
    indicator of each of its values, in sorted order, but its baseline. With `exposure`, the field ``exposure`` (n,). Of
    each column of `groups` a field of its name (n,) int64: 0 to G - 1 for its G values in sorted order.

    Args:
        file: .csv, .tsv or .txt (also compressed), or .parquet (needs pyarrow); searched in the user's folders, then in
            the current folder.
        target: the column of y; None for a table without one.
        features: the numerical columns; None for all others.
        categorical: the columns that are categories, as text or numbers.
        baselines: categorical column -> the value that has no indicator, with which the others are compared; of columns
            that are not named, the first in sorted order.
        exposure: the column of the exposure of counts, positive numbers, such as times of observation: the mean of a
            count is proportional to it. Read by `PoissonRegression`, and by functions as ``rows.exposure``.
        groups: columns whose values are groups, such as schools or patients, as text or numbers: codes, with which a
            multilevel model reads the effects of its groups, ``theta.effects[rows.school]``. `facts` has their values.
        outcome: type of y: ``number`` (float64); ``sign``, +1 or -1 of two values (int8); ``class``, 0 to K - 1 of K
            values in sorted order (int64).
        positive: the value of the target that is +1; None for the later of the two in sorted order.
        standardise: whether numerical features are standardised to mean 0 and standard deviation 1 (divisor n) on the
            training rows.
        standardise_target: likewise for y; `facts` has its mean and standard deviation.
        intercept: whether the first column of x is 1.
        missing: if a row lacks a value, ``refuse`` the table or ``drop`` the row.
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
    ) -> None:
        for name, value, allowed in (
            ("outcome", outcome, _OUTCOMES),
            ("missing", missing, ("refuse", "drop")),
            ("part", part, _PARTS),
        ):
            if value not in allowed:
                raise Refusal(f"{name} = {value!r} is unknown; choose {', '.join(allowed)}.")
        if not 0 <= test_share < 1 or (part == "test" and test_share == 0):
            raise Refusal(f"test_share = {test_share:g} leaves no rows for part = '{part}'.")
        if seed < 0:
            raise Refusal(f"seed = {seed} of the split must not be negative.")
        if standardise_target and outcome != "number":
            raise Refusal("standardise_target goes with outcome = number.")
        if features is not None and exclude:
            raise Refusal(
                f"exclude = [{', '.join(exclude)}] goes with features = null; leave them out of features."
            )
        if unknown := [name for name in baselines or {} if name not in (categorical or ())]:
            raise Refusal(
                f"baselines: '{unknown[0]}' is not in categorical = [{', '.join(categorical or ())}]; add it."
            )
        self.file = file
        self.target = target
        self.features = None if features is None else list(features)
        self.exclude = list(exclude or ())
        self.categorical = list(categorical or ())
        self.baselines = dict(baselines or {})
        self.exposure = exposure
        self.groups = list(groups or ())
        self.outcome = outcome
        self.positive = positive
        self.standardise = standardise
        self.standardise_target = standardise_target
        self.intercept = intercept
        self.missing = missing
        self.test_share = test_share
        self.part = part
        self.seed = seed
        self.separator = separator

    @property
    def n(self) -> int:
        """The number of rows; reads the table."""
        return self._loaded.n

    def load(self) -> Dataset:
        """Return the data set.

        Raises:
            UserError: a file, a column or a value is missing or invalid.
        """
        return self._loaded

    @cached_property
    def _loaded(self) -> Dataset:
        return self._kept[0]

    @cached_property
    def _kept(self) -> tuple[Dataset, dict[str, list[Any]]]:
        """The data and the values of each categorical column, of a table of the same settings read before or read now.

        Methods of a run with targets of their own, and its report, each have a part of this class.
        """
        path = located(self.file)
        status = path.stat()
        content = {name: value for name, value in vars(self).items() if name != "file"}
        key = json.dumps([str(path.resolve()), status.st_mtime_ns, status.st_size, content], default=str)
        if key not in _tables:
            _tables[key] = self._read(path)
            while len(_tables) > _KEPT:
                _tables.popitem(last=False)
        _tables.move_to_end(key)
        return _tables[key]

    def _read(self, path: Path) -> tuple[Dataset, dict[str, list[Any]]]:
        frame = read_table(path, self.separator)
        frame.columns = list(map(str, frame.columns))  # names of Parquet columns may be numbers
        chosen = self._columns(list(frame.columns))
        table = frame[[*chosen, *self.categorical, *self._numbers, *self.groups]]
        missing = table.isna()
        bad = missing.any(axis=1)
        if bad.any() and self.missing == "refuse":
            for name in (*chosen, *self._numbers):
                check_decimals(table[name], path)
            counts = {str(c): int(k) for c, k in missing.sum().items() if k}
            listing = ", ".join(f"{c}: {k:,}" for c, k in list(counts.items())[:5]) + ", ..." * (
                len(counts) > 5
            )
            first = ", ".join(f"{i + 1:,}" for i in np.flatnonzero(bad.to_numpy())[:3])
            raise UserError(
                f"{path.name}: {int(bad.sum()):,} of {len(frame):,} rows lack a value ({listing}), "
                f"first in data rows {first}; missing=drop leaves them out.{_of_text(table[chosen])}"
            )
        table = table[~bad]
        train = self._for_training(len(table))
        kept = train if self.part == "train" else ~train
        if not kept.any() or not train.any():
            raise UserError(f"{path.name}: {len(table):,} rows leave none for part = {self.part}.")

        levels = self._levels(table, path)
        indicators = [(name, level) for name in self.categorical for level in levels[name][1:]]
        width = self.intercept + len(chosen) + len(indicators)
        check_memory(
            COPIES * 8 * len(table) * width, f"{path.name}, {width:,} columns of x,", "leave some out"
        )
        # Column by column into its place: a table is large, and no copy of all of it is made.
        x = np.empty((int(kept.sum()), width))
        columns: list[str] = []

        def fill(name: str, values: Array | float) -> None:
            x[:, len(columns)] = values[kept] if isinstance(values, np.ndarray) else values
            columns.append(name)

        scales: dict[str, list[float]] = {}
        if self.intercept:
            fill("1", 1.0)
        for name, values in self._features(table, chosen, train, path, scales):
            fill(name, values)
        for name, level in indicators:
            fill(f"{name}={level}", (table[name] == level).to_numpy(np.float64))
        fields: dict[str, Array] = {}
        facts: dict[str, Any] = {
            "columns": columns,
            "intercept": self.intercept,
            "dropped": int(bad.sum()),
            "scales": scales,
        }
        facts["baselines"] = {name: str(levels[name][0]) for name in self.categorical}
        if columns:
            fields["x"] = x
        if self.target:
            y, facts_of_y = self._outcome(table[self.target], train, path)
            fields["y"], facts = y[kept], facts | facts_of_y
        if self.exposure:
            fields["exposure"] = exposure_of(table[self.exposure], path)[kept]
            facts["exposure"] = self.exposure
        if self.groups:
            fields |= {name: codes_of(table[name], levels[name], path)[kept] for name in self.groups}
            facts["groups"] = {name: list(map(str, levels[name])) for name in self.groups}
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in fields.items()}
        words = f"{path.name}: {len(x):,} rows of {len(frame):,}, {len(columns)} columns of x"
        return Dataset(tensors, words, facts), levels

    def _levels(self, table: Any, path: Path) -> dict[str, list[Any]]:
        """Return the values of each categorical column and of each column of groups."""
        levels = {name: levels_of(table[name], path, self.baselines.get(name)) for name in self.categorical}
        for name, values in levels.items():
            if is_label(len(values), len(table)):
                raise UserError(
                    f"{path.name}: column '{name}' has {len(values):,} values in {len(table):,} rows, too many for "
                    f"categories; leave it out of categorical, and set groups=[{name}] for a multilevel model, or "
                    f"exclude=[{name}]."
                )
        for name in self.groups:
            levels[name] = levels_of(table[name], path)
            if len(levels[name]) < 2:
                raise UserError(
                    f"{path.name}: column '{name}' has one value, {few(levels[name])}; leave it out of groups, and "
                    f"set exclude=[{name}]."
                )
        return levels

    def _features(
        self,
        table: Any,
        chosen: Sequence[str],
        train: npt.NDArray[np.bool_],
        path: Path,
        scales: dict[str, list[float]],
    ) -> Iterator[tuple[str, Array]]:
        """Yield the numerical features, standardised if wanted, and add their means and deviations to `scales`.

        Raises:
            UserError: columns that are no features, all of them at once.
        """
        problems = dict[str, str]()
        for name in chosen:
            try:
                values = numbers(table[name], path)
                if self.standardise:
                    values, scales[name] = standardised(values, train, name, path)
            except UserError as error:
                problems[name] = str(error)
                continue
            if not problems:
                yield name, values
        if len(problems) > 1:
            lines = " ".join(
                line.removeprefix(f"{path.name}: ").rstrip(".") + "." for line in problems.values()
            )
            raise UserError(f"{path.name}: {len(problems)} columns are no features: {lines}")
        if problems:
            raise UserError(*problems.values())

    def prepared(self, new: Any) -> Dataset:
        """Return field ``x`` of new rows, prepared as the table's: standardised by its means, with its indicators.

        Args:
            new: a DataFrame, a mapping from columns to values (a number is one row), or a file as of the table. Columns
                that the table does not use, the target too, are ignored. The exposure is one that it uses.

        Raises:
            UserError: a column is missing, lacks a value, or has a category that the table does not have.
        """
        import pandas as pd

        (data, levels), path = self._kept, Path("the new rows")
        facts = data.facts
        if isinstance(new, str | Path):
            path = located(str(new))
            frame = read_table(path, self.separator)
        elif isinstance(new, Mapping):
            frame = pd.DataFrame(
                new if any(np.ndim(v) for v in new.values()) else {k: [v] for k, v in new.items()}
            )
        elif isinstance(new, pd.DataFrame):
            frame = new
        else:
            raise UserError(f"New rows of {self.file} are a DataFrame, a mapping of its columns, or a file.")
        frame = frame.rename(columns=str).reset_index(drop=True)  # messages name rows by their place
        indicators = {f"{name}={level}" for name in self.categorical for level in levels[name]}
        numerical = [name for name in features_of(facts) if name not in indicators]
        if self.exposure and self.exposure not in frame:
            raise UserError(
                f"{path.name}: there is no column '{self.exposure}', the exposure, which counts are proportional to."
            )
        exposure = [self.exposure] if self.exposure else []
        for name in (*numerical, *self.categorical, *self.groups, *exposure):
            if name not in frame:
                raise UserError(
                    f"{path.name}: there is no column '{name}'.{nearest(name, map(str, frame.columns))}"
                )
            if (missing := frame[name].isna().to_numpy()).any():
                count = int(missing.sum())
                raise UserError(
                    f"{path.name}: column '{name}' lacks a value in {count:,} row{'s' * (count != 1)}, first in data "
                    f"row {int(missing.argmax()) + 1:,}."
                )
        columns = [np.ones(len(frame))] if self.intercept else []
        for name in numerical:
            mean, sd = facts["scales"].get(name, (0.0, 1.0))
            columns.append((numbers(frame[name], path) - mean) / sd)
        for name in self.categorical:
            codes_of(frame[name], levels[name], path)  # refuses unknown values
            columns += [(frame[name] == level).to_numpy(np.float64) for level in levels[name][1:]]
        fields = {"x": np.column_stack(columns)} if columns else {}
        if self.exposure:
            fields["exposure"] = exposure_of(frame[self.exposure], path).copy()  # pandas lends it read-only
        fields |= {name: codes_of(frame[name], levels[name], path) for name in self.groups}
        if not fields:
            raise UserError(f"{self.file} is read without features, of which new rows could have others.")
        tensors = {name: torch.from_numpy(values) for name, values in fields.items()}
        return Dataset(tensors, f"{len(frame):,} new rows", facts)

    @property
    def _numbers(self) -> list[str]:
        """The columns of numbers besides those of x."""
        return [name for name in (self.exposure, self.target) if name]

    def _columns(self, names: list[str]) -> list[str]:
        """Return the numerical features, after checking that all columns exist and can be named in a configuration."""
        roles: dict[str, list[str]] = {
            "features": self.features or [],
            "categorical": self.categorical,
            "groups": self.groups,
            "exclude": self.exclude,
            "exposure": [self.exposure] if self.exposure else [],
            "target": [self.target] if self.target else [],
        }
        check_roles(self.file, names, roles)
        declared = [name for columns in roles.values() for name in columns]
        features = (
            [name for name in names if name not in declared] if self.features is None else self.features
        )
        for name in (*features, *self.categorical, *self.groups, *self._numbers):
            check_word(name, f"{self.file}: column")
        return features

    def _for_training(self, n: int) -> npt.NDArray[np.bool_]:
        order = np.random.default_rng(self.seed).permutation(n)
        train = np.ones(n, bool)
        train[order[: round(self.test_share * n)]] = False
        return train

    def _outcome(self, column: Any, train: npt.NDArray[np.bool_], path: Path) -> tuple[Array, dict[str, Any]]:
        if self.outcome == "number":
            y = numbers(column, path)
            if not self.standardise_target:
                return y, {}
            y, (mean, sd) = standardised(y, train, str(column.name), path)
            return y, {"target_mean": mean, "target_sd": sd}
        levels = levels_of(column, path)
        if self.outcome == "class":
            codes = {level: code for code, level in enumerate(levels)}
            return np.array([codes[v] for v in column], np.int64), {"classes": levels}
        positive = levels[-1] if self.positive is None else self.positive
        if len(levels) != 2 or positive not in levels:
            raise UserError(
                f"{path.name}: outcome=sign wants two values of '{column.name}', one of them {positive!r}; there are "
                f"{few(levels)}."
            )
        return np.where(column.to_numpy() == positive, np.int8(1), np.int8(-1)), {"positive": positive}


def _of_text(features: Any) -> str:
    """Return a sentence on columns of text among the features of a table, which will be refused next."""
    from pandas.api.types import is_numeric_dtype

    texts = [str(name) for name in features.columns if not is_numeric_dtype(features[name])]
    return f" There is text in {', '.join(texts)}: categorical=[{','.join(texts)}]." if texts else ""
