"""``mhrun init DIR --data FILE --outcome COLUMN``: a project whose model fits the columns of a table."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mhrun.build import call
from mhrun.cli.init.groups import multilevel
from mhrun.cli.init.hints import hints_of
from mhrun.cli.init.methods import compared_methods, describe, experiment_file, is_exact, quick_steps
from mhrun.cli.init.models import Fitted, check_counts, part_text, regression_of
from mhrun.cli.init.table_settings import read_settings
from mhrun.data import Dataset
from mhrun.data.outcome import outcome_of
from mhrun.data.table import Table
from mhrun.data.table_facts import describe_units, features_of
from mhrun.data.table_roles import check_plain_name
from mhrun.errors import UserError
from mhrun.paths import CONF

_LABELS = 10  # values of a target up to which whole numbers may be classes


class NewProject(NamedTuple):
    """A project to be written."""

    name: str  # of its data, model and experiment
    files: dict[str, str]  # path in the project -> text
    lines: list[str]  # on what was chosen
    reference: str | None  # the exact method that others are compared with, if there are others


def project_of(file: Path, target: str | None, settings: Sequence[str]) -> NewProject:
    """Return the project for a table.

    The target decides which of `mhrun.cli.init.models.REGRESSIONS` it is, unless ``model`` does. Numerical features
    are standardised.

    Args:
        file: the table.
        target: the column of the outcome; None: the last.
        settings: KEY=VALUE, of `mhrun.data.table.Table`, or ``model``, or ``form`` of the effects of groups.

    Raises:
        UserError: a table, a column or a setting that does not fit.
    """
    file = file.resolve()
    given, model, form = read_settings(settings)
    table_settings = {"file": str(file)} | given
    # Checks the settings before the file is read; a baseline may be that of the outcome, which is not known yet.
    call(Table, {key: value for key, value in table_settings.items() if key != "baselines"}, "the table")
    target, levels = outcome_of(
        file,
        target,
        table_settings.get("separator"),
        table_settings.get("missing_values", ()),
        may_be_constant=model in ("poisson", "binomial"),
    )
    regression = regression_of(model, target, levels)
    _check_sizes(table_settings, regression.kind)
    table_settings |= {"target": target, **regression.table}
    groups = table_settings.get("groups")
    if groups:
        table_settings.pop("intercept", None)  # a named parameter, and no column of x
    elif form is not None:
        raise UserError(f"form={form} is that of the effects of groups: add groups=COLUMN.")
    data = _loaded(file, target, levels, table_settings)
    check_counts(regression.kind, target, data)
    columns, name = features_of(data.facts), _name(file)
    fitted = (
        multilevel(regression.kind, name, target, data, form)
        if groups
        else regression.fitted(name, target, data, levels)
    )
    has_bounds = regression.has_bounds and not groups
    title = (
        f"{regression.kind[0].upper()}{regression.kind[1:]} regression of {target} on columns of {file.name}"
    )
    width = len(columns) + len(groups) if groups else fitted.dim  # numbers of a row
    methods = compared_methods(has_bounds, data.n, fitted.dim, width, may_walk=not groups)
    steps = quick_steps(fitted.dim, has_bounds=has_bounds)
    files = {
        f"conf/data/{name}.yaml": part_text([title], "table", _in_project(table_settings, file, columns)),
        f"conf/experiment/{name}.yaml": experiment_file(name, title, methods, steps, has_groups=bool(groups)),
        **fitted.files,
    }
    alternatives = [] if model is not None else _other_models(target, levels, regression.kind)
    lines = [*_describe_model(regression.kind, fitted, data, alternatives), *describe(methods, data.n)]
    exact = next((method for method in methods if is_exact(method, data.n)), None)
    return NewProject(name, files, lines, exact)


def _describe_model(kind: str, fitted: Fitted, data: Dataset, alternatives: Sequence[str]) -> list[str]:
    """Return lines on a regression: its data, other models and hints, units and priors."""
    return [
        f"model   {kind} regression of {fitted.outcome}: {data.n:,} rows, {_describe_columns(data.facts)}",
        *alternatives,
        *(f"        {line}" for line in hints_of(data, kind)),
        *(f"units   {line}" for line in describe_units(data.facts)),
        f"priors  {fitted.prior}",
    ]


def _check_sizes(table_settings: Mapping[str, Any], kind: str) -> None:
    """Refuse an exposure or trials that the model does not read, and a binomial regression without trials.

    Raises:
        UserError: there are such.
    """
    if (exposure := table_settings.get("exposure")) and kind != "Poisson":
        raise UserError(f"exposure={exposure} requires counts: add model=poisson.")
    if (trials := table_settings.get("trials")) and kind != "binomial":
        raise UserError(f"trials={trials} requires counts of successes: add model=binomial.")
    if kind == "binomial" and not trials:
        raise UserError(
            "model=binomial requires trials=COLUMN, the trials of which the outcome counts the successes; of single "
            "trials, two values, model=logistic is the same."
        )


def _loaded(file: Path, target: str, levels: Sequence[Any], table_settings: Mapping[str, Any]) -> Dataset:
    """Return the data of a table whose settings are known.

    Raises:
        UserError: there are no features, or names that a configuration cannot have.
    """
    check_plain_name(file.name, "the file")
    data = call(Table, table_settings, "the table").load()
    columns = features_of(data.facts)
    _check_names(file.name, columns, levels, data.facts)
    if not table_settings.get("groups") and ("x" not in data.fields or not columns):
        raise UserError(f"{file.name} has no column but '{target}'; a regression needs features.")
    return data


def _in_project(table_settings: Mapping[str, Any], file: Path, columns: Sequence[str]) -> dict[str, Any]:
    """Return the settings of the table in the project: beside its copy, with the features that it has now."""
    settings = {**table_settings, "file": file.name}
    if "features" not in settings:
        categorical = {str(name) for name in settings.get("categorical") or ()}
        settings["features"] = [name for name in columns if name.partition("=")[0] not in categorical]
        settings.pop("exclude", None)
    return settings


def _other_models(target: str, levels: Sequence[Any], kind: str) -> list[str]:
    """Return lines on other models that the values of a target may be meant for."""
    lines = []
    if levels[:3] == [0, 1, 2]:  # the smallest
        lines.append(f"        {target} may be a count: model=poisson is a Poisson regression")
    if kind == "linear" and _may_be_classes(levels):
        lines.append(f"        {target} has {len(levels)} values: model=softmax if they are classes")
    return lines


def _check_names(
    file_name: str, columns: Sequence[str], levels: Sequence[Any], facts: Mapping[str, Any]
) -> None:
    """Refuse features, values of the target and labels of groups that a configuration cannot name, or names twice."""
    of_groups = [label for labels in facts.get("groups", {}).values() for label in labels]
    for name in (*columns, *map(str, levels), *of_groups):
        check_plain_name(name, f"{file_name}: the value")
    if repeated := next((name for name in columns if columns.count(name) > 1), None):
        raise UserError(
            f"{file_name}: '{repeated}' is a column, and the indicator of a value of '{repeated.partition('=')[0]}'; "
            "rename the column."
        )


def _may_be_classes(levels: Sequence[Any]) -> bool:
    """Return whether the values of a target are few whole numbers, which may be labels."""
    return 2 < len(levels) <= _LABELS and all(float(level).is_integer() for level in levels)


def write_project(folder: Path, table: Path, project: NewProject) -> list[Path]:
    """Write a project and a copy of its table, and return the files.

    Raises:
        UserError: a file is there already, or cannot be written.
    """
    existing = [path for path in (folder / name for name in project.files) if path.exists()]
    copy = folder / table.name
    is_in_place = copy.exists() and copy.resolve() == table.resolve()
    if existing or (copy.exists() and not is_in_place):
        raise UserError(f"'{[*existing, copy][0]}' is there already; choose another folder.")
    try:
        for name, text in project.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        if not is_in_place:
            shutil.copyfile(table, copy)
    except OSError as error:
        raise UserError(f"'{folder}' cannot be written: {error.strerror or error}.") from error
    return [folder / name for name in sorted(project.files)] + [copy] * (not is_in_place)


def _name(file: Path) -> str:
    """Return a name for data, model and experiment, which nothing of mhrun's has."""
    stem = re.sub(r"\W+", "_", file.name.split(".")[0], flags=re.ASCII).strip("_").lower() or "table"
    stem = stem if stem[0].isalpha() else f"table_{stem}"
    taken_names = {
        path.stem for group in ("data", "model", "experiment") for path in (CONF / group).glob("*.yaml")
    }
    return f"my_{stem}" if stem in taken_names | {"own"} else stem


def _describe_columns(facts: Mapping[str, Any]) -> str:
    """Return the features in words: columns of numbers, and indicators of categories."""
    indicators = sum(name.partition("=")[0] in facts["baselines"] for name in facts["columns"])
    numbers = len(features_of(facts)) - indicators
    parts = [f"{numbers:,} column{'s' * (numbers != 1)}"] * bool(numbers)
    parts += [f"{len(facts['baselines']):,} categor{'y' if len(facts['baselines']) == 1 else 'ies'}"] * bool(
        indicators
    )
    if groups := facts.get("groups"):
        parts.append(f"groups of {' and of '.join(groups)}")
    return " and ".join(parts)
