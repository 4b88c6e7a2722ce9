"""The roles of a table's columns, and the columns that are neither features nor the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mhrun.array_types import Array
from mhrun.data.advice import list_setting
from mhrun.data.columns import codes_of_missing, few, is_label, levels_of
from mhrun.data.sizes import SIZES
from mhrun.errors import Refusal, UserError, nearest

# A role of one column: its name, where a column has two roles.
_ROLE_NAMES = {"features": "feature", "categorical": "category", "groups": "group", "exclude": "excluded"}


def check_roles(file: str, names: Sequence[str], roles: Mapping[str, Sequence[str]]) -> None:
    """Refuse columns that a table does not have, and columns with two roles.

    Args:
        file: of the table, for messages.
        names: of its columns.
        roles: setting -> the columns that it names.

    Raises:
        UserError: there is such a column.
    """
    declared = [name for columns in roles.values() for name in columns]
    for name in declared:
        if name not in names:
            for column in names:  # the name may be what became of ${...}
                check_plain_name(column, f"{file}: column")
            hint = (
                nearest(str(name), names)
                or f" There are: {', '.join(names[:12])}{', ...' * (len(names) > 12)}."
            )
            raise UserError(f"{file} has no column '{name}'.{hint}")
    fields = ("x", "y", *(field for field in SIZES if roles.get(field)))
    for name in roles["groups"]:
        if name in fields:
            raise UserError(
                f"{file}: groups: '{name}' is the name of another field of the data; rename the column."
            )
    repeated = sorted({name for name in declared if declared.count(name) > 1})
    if not repeated:
        return
    settings = [setting for setting, columns in roles.items() if repeated[0] in columns]
    if len(settings) == 1:
        raise UserError(f"{file}: '{repeated[0]}' is in {settings[0]} twice; name it once.")
    roles_of_column = " and ".join(_ROLE_NAMES.get(setting, setting) for setting in settings)
    raise UserError(f"{file}: '{repeated[0]}' is {roles_of_column}; give it one role.")


def check_lists(**settings: object) -> None:
    """Refuse a text in place of a list of columns, which would be read letter by letter.

    Raises:
        Refusal: there is one.
    """
    for name, columns in settings.items():
        if isinstance(columns, str):
            raise Refusal(f"{name} = {columns!r} must be a list of columns: {list_setting(name, [columns])}.")


def check_plain_name(name: str, what: str) -> None:
    """Refuse a name that a configuration would read as something else.

    Raises:
        UserError: it has ``${``, which begins a reference to a setting, or is ``???``, a setting that is missing.
    """
    if "${" in name or name == "???":
        raise UserError(
            f"{what} '{name}' cannot be named in a configuration, where ${{...}} refers to a setting and ??? is a "
            "missing one; rename it."
        )


def advice_on_texts(features: Any) -> str:
    """Return a sentence on columns of text among the features of a table, which will be refused next; or nothing."""
    from pandas.api.types import is_numeric_dtype

    texts = [str(name) for name in features.columns if not is_numeric_dtype(features[name])]
    labels = [name for name in texts if is_label(features[name].nunique(), len(features))]  # such as dates
    codes = {name: codes_of_missing(features[name].dropna()) for name in texts}
    texts = [name for name in texts if name not in labels and not codes[name]]
    settings = {
        "categorical": texts,
        "exclude": [name for name in labels if not codes[name]],
        **{f"missing_values.{name}": found for name, found in codes.items()},
    }
    advice = " ".join(list_setting(key, values) for key, values in settings.items() if values)
    return f" There is text in {', '.join(codes)}: {advice}." if advice else ""


def codes_of(column: Any, levels: Sequence[Any], path: Path) -> Array:
    """Return the places of a column's values among the values that the table has, int64.

    Raises:
        UserError: a value that the table does not have.
    """
    import pandas as pd

    known = {level: code for code, level in enumerate(levels)}
    places, values = pd.factorize(column)
    if known.keys().isdisjoint(values.tolist()):  # as texts where the table has numbers
        known |= {str(level): code for code, level in enumerate(levels)}
    if any(value not in known for value in values.tolist()):
        unknown = [value for value in levels_of(column, path) if value not in known]
        raise UserError(
            f"{path.name}: column '{column.name}' has {few(unknown)}, which the table does not have: {few(levels)}."
        )
    codes: Array = np.array([known[value] for value in values.tolist()], np.int64)[places]
    return codes
