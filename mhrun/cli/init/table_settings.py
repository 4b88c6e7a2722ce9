"""Settings of a table on the command line of ``mhrun init``: KEY=VALUE."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from mhrun.data.advice import list_setting
from mhrun.data.table import Table
from mhrun.data.table_roles import check_plain_name
from mhrun.errors import UserError, nearest

_OF_MODEL = ("model", "form")  # settings of the model, not of the table
# Settings of the table that the project sets itself
_SET = {"file", "target", "outcome", "standardise_target", "intercept", "part"}


class InitSettings(NamedTuple):
    """The settings of a command ``mhrun init DIR --data FILE``."""

    table: dict[str, Any]  # of `mhrun.data.table.Table`
    model: str | None
    form: str | None  # of the effects of groups


def read_settings(settings: Sequence[str]) -> InitSettings:
    """Return settings from KEY=VALUE: those of the table, ``model`` and ``form``.

    Raises:
        UserError: there is no such setting, or its value cannot be read.
    """
    model, form = (
        next((setting.partition("=")[2] for setting in settings if setting.startswith(f"{key}=")), None)
        for key in _OF_MODEL
    )
    of_table = [setting for setting in settings if setting.partition("=")[0] not in _OF_MODEL]
    return InitSettings(_table_settings(of_table), model, form)


def _table_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return settings of the table from KEY=VALUE, baselines.COLUMN=VALUE and missing_values.COLUMN=[VALUE,...]."""
    names = set(inspect.signature(Table).parameters) - _SET
    by_key: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        key, _, column = key.removeprefix("data.").partition(".")
        if not equals or key not in names or (column and key not in ("baselines", "missing_values")):
            hint = nearest(key, names)
            if key == "offset":
                hint = (
                    " An offset is the logarithm of an exposure: write exposure=COLUMN, a column of its exp."
                )
            raise UserError(
                f"{setting!r} is not a setting of the table here.{hint} There are: {', '.join(sorted(names))}."
            )
        check_plain_name(value, key)
        if key == "baselines":
            if not column:
                raise UserError(f"{setting} cannot be read; write baselines.COLUMN=VALUE.")
            by_key.setdefault(key, {})[column] = value
            continue
        if key == "missing_values" and column:
            by_column = by_key.setdefault(key, {})
            if not isinstance(by_column, dict):
                raise UserError(
                    f"{setting}: missing_values is a list for all columns already; leave one out."
                )
            found = yaml.safe_load(value)
            by_column[column] = found if isinstance(found, list) else [found]
            continue
        try:
            by_key[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UserError(f"{setting} cannot be read; write lists as {key}=[a,b].") from error
        if key in ("features", "categorical", "groups", "exclude"):
            by_key[key] = by_key[key] if isinstance(by_key[key], list) else [str(by_key[key])]
            _check_list(setting, key, by_key[key])
        if key == "missing_values" and not isinstance(by_key[key], list | dict):
            by_key[key] = [by_key[key]]
    return by_key


def _check_list(setting: str, key: str, columns: Sequence[Any]) -> None:
    """Refuse a list in which a name with a colon was read as a mapping."""
    for column in columns:
        if isinstance(column, Mapping):
            name = ", ".join(f"{before}: {after}" for before, after in column.items())
            raise UserError(
                f"{setting} is no list of columns; put a name with a colon in quotes: {list_setting(key, [name])}"
            )
