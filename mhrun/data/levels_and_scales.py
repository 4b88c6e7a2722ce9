"""What a design takes from the rows of its table: the values of categories and groups, and the scales of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mhrun.data.advice import list_setting
from mhrun.data.columns import few, is_label, levels_of, mean_and_sd, numbers
from mhrun.errors import UserError


def levels_of_categories(
    table: Any, categorical: Sequence[str], baselines: Mapping[str, Any], path: Path
) -> dict[str, list[Any]]:
    """Return the values of each categorical column, its baseline first.

    Args:
        table: a pandas DataFrame.
        categorical: the columns.
        baselines: column -> its baseline; of others, the first value in sorted order is.
        path: of the table's file, for messages.

    Raises:
        UserError: a column has too many values for categories, see `is_label`.
    """
    levels = {name: levels_of(table[name], path, baselines.get(name)) for name in categorical}
    for name, values in levels.items():
        if is_label(len(values), len(table)):
            raise UserError(
                f"{path.name}: column '{name}' has {len(values):,} values in {len(table):,} rows, too many for "
                f"categories; leave it out of categorical, and set {list_setting('groups', [name])} for a "
                f"multilevel model, or {list_setting('exclude', [name])}."
            )
    return levels


def levels_of_groups(table: Any, groups: Sequence[str], path: Path) -> dict[str, list[Any]]:
    """Return the values of each column of groups, in sorted order.

    Raises:
        UserError: a column has one value.
    """
    levels = dict[str, list[Any]]()
    for name in groups:
        levels[name] = levels_of(table[name], path)
        if len(levels[name]) < 2:
            raise UserError(
                f"{path.name}: column '{name}' has one value, {few(levels[name])}; leave it out of groups, and "
                f"set {list_setting('exclude', [name])}."
            )
    return levels


def scales_of_features(
    table: Any, features: Sequence[str], train: npt.NDArray[np.bool_], path: Path, *, standardise: bool
) -> dict[str, tuple[float, float]]:
    """Return the means and standard deviations of the numerical features, if they are to be standardised.

    Args:
        table: a pandas DataFrame of n rows.
        features: the numerical columns.
        train: the rows (n,) that scales are of.
        path: of the table's file, for messages.
        standardise: whether they are; otherwise features are checked only.

    Raises:
        UserError: columns that are no features, all of them at once.
    """
    scales, problems = dict[str, tuple[float, float]](), list[str]()
    for name in features:
        try:
            values = numbers(table[name], path)
            if standardise:
                scales[name] = mean_and_sd(values, train, name, path)
        except UserError as error:
            problems.append(str(error))
    if len(problems) > 1:
        lines = " ".join(line.removeprefix(f"{path.name}: ").rstrip(".") + "." for line in problems)
        raise UserError(f"{path.name}: {len(problems)} columns are no features: {lines}")
    if problems:
        raise UserError(*problems)
    return scales
