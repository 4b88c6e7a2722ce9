"""``mhrun init DIR --data FILE --outcome COLUMN``: a project whose model fits the columns of a table."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from mhrun.build import call
from mhrun.cli.init.groups import multilevel
from mhrun.cli.init.hints import hints_of
from mhrun.cli.init.models import check_counts, flow, part_text, regression_of
from mhrun.data import Dataset
from mhrun.data.advice import list_setting
from mhrun.data.outcome import outcome_of
from mhrun.data.table import Table
from mhrun.data.table_facts import describe_units, features_of
from mhrun.data.table_roles import check_plain_name
from mhrun.errors import UserError, nearest
from mhrun.paths import CONF

_FULL = 200_000  # rows up to which a method on all data is the reference of a model with bounds
_WORK = 50 * _FULL  # numbers of a table up to which it is: HMC reads all of them thousands of times
_NOISY = 20_000  # rows above which SGLD needs control variates: its effective draws fall as 1 / n
_WIDE = 50  # parameters from which the bounds of SMH-2 are too wide to save data
_WIDER = 64  # and those of zig-zag: a draw of 30 parameters reads 52 data, of 60 430, and of 90 2,150
_EXACT = ("hmc", "mcmc", "mala", "smh2", "mh_ss", "zig_zag")
_AT_ONE = ("hmc", "mcmc", "mala", "sgld", "sgld_cv")  # methods that have no temperature but 1
_STEPS = 10_000  # at scale=quick
# Steps of HMC, each a trajectory of gradients on all data, and its burn-in; of multilevel models.
_HMC, _BURN = {"smoke": 100, "quick": 500, "long": 2000}, 100
_HMC_OF_GROUPS, _BURN_OF_GROUPS = {"smoke": 100, "quick": 1000, "long": 4000}, 500
_WALK = 1_500  # steps for each parameter, so that four chains of a random walk converge (R-hat below 1.01)
_MOST_STEPS = 3 * _STEPS  # at scale=quick
_PILOTED = 1_000  # parameters up to which a pilot finds the length of HMC's trajectories
_SHORT = 200  # and above which HMC reads at most _WORK numbers
_TOO_FEW = 200  # rows up to which MHminibatch reads most of them: its first minibatch has 100
_FEW = 10  # parameters up to which a random walk is the reference
_LABELS = 10  # values of a target up to which whole numbers may be classes
_SET = {
    "file",
    "target",
    "outcome",
    "standardise_target",
    "intercept",
    "part",
}  # by the template, not by the user
_OF_MODEL = ("model", "form")  # settings of the model, not of the table


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
    model, form = (
        next((setting.partition("=")[2] for setting in settings if setting.startswith(f"{key}=")), None)
        for key in _OF_MODEL
    )
    table_settings = {"file": str(file)} | _table_settings(
        [w for w in settings if w.partition("=")[0] not in _OF_MODEL]
    )
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
    if form is not None and not groups:
        raise UserError(f"form={form} is that of the effects of groups: add groups=COLUMN.")
    if groups:
        table_settings.pop("intercept", None)  # a named parameter, and no column of x
    data = _loaded(file, target, levels, table_settings)
    check_counts(regression.kind, target, data)
    columns, name = features_of(data.facts), _name(file)
    fitted = (
        multilevel(regression.kind, name, target, data, form)
        if groups
        else regression.fitted(name, target, data, levels)
    )
    has_bounds = regression.has_bounds and not groups
    of_columns = _columns(data.facts)
    title = (
        f"{regression.kind[0].upper()}{regression.kind[1:]} regression of {target} on columns of {file.name}"
    )
    steps = min(max(_STEPS, _WALK * fitted.dim), _MOST_STEPS) // (1 if has_bounds else 2)
    width = len(columns) + len(groups) if groups else fitted.dim  # numbers of a row
    methods = _methods(has_bounds, data.n, fitted.dim, width, may_walk=not groups)
    files = {
        f"conf/data/{name}.yaml": part_text([title], "table", _written(table_settings, file, columns)),
        f"conf/experiment/{name}.yaml": _experiment(name, title, methods, steps, has_groups=bool(groups)),
        **fitted.files,
    }
    lines = [
        f"model   {regression.kind} regression of {fitted.outcome}: {data.n:,} rows, {of_columns}",
        *([] if model is not None else _other_models(target, levels, regression.kind)),
        *(f"        {line}" for line in hints_of(data, regression.kind)),
        *(f"units   {line}" for line in describe_units(data.facts)),
        f"priors  {fitted.prior}",
        f"methods {_by_kind(methods)}",
        *["        hmc reads all data: --dry-run says how long it takes, and '~methods.hmc' leaves it out"]
        * ("hmc" in methods and data.n > _FULL),
    ]
    exact = next((method for method in methods if method in _EXACT), None)
    return NewProject(name, files, lines, exact)


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


def _written(table_settings: Mapping[str, Any], file: Path, columns: Sequence[str]) -> dict[str, Any]:
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


def _name(file: Path) -> str:
    """Return a name for data, model and experiment, which nothing of mhrun's has."""
    stem = re.sub(r"\W+", "_", file.name.split(".")[0], flags=re.ASCII).strip("_").lower() or "table"
    stem = stem if stem[0].isalpha() else f"table_{stem}"
    taken_names = {
        path.stem for group in ("data", "model", "experiment") for path in (CONF / group).glob("*.yaml")
    }
    return f"my_{stem}" if stem in taken_names | {"own"} else stem


def _methods(has_bounds: bool, n: int, dim: int, width: int, *, may_walk: bool) -> list[str]:
    """Return the methods that are compared: a reference first, where there is one for so many rows.

    The reference is a random walk, which is the fastest for few parameters, or HMC: the walk's effective draws per
    step are at most 0.33 / dim (Roberts and Rosenthal 2001).
    SMH-2 and zig-zag are exact and read few data, if parameters are not too many for their bounds. The linear model is
    a function in torch without bounds, on which the tests that read most of the data take many times as long.
    """
    exact = ["smh2"] * (dim < _WIDE)
    dynamics = "sgld" if n <= _NOISY else "sgld_cv"
    if has_bounds and (n > _FULL or n * dim > _WORK):
        return [*exact, "zig_zag" if dim < _WIDER else "mh_ss", dynamics]
    walks = may_walk and dim <= _FEW and (has_bounds or n <= _FULL)
    follows = dim <= _SHORT or (dim <= _PILOTED and n * width <= _WORK)
    reference = "mcmc" if walks else "hmc" if follows else "mala"
    minibatch = ["mint"] + ["mhminibatch"] * (n > _TOO_FEW)
    return [reference, *exact, *minibatch, dynamics] if has_bounds else [reference, dynamics]


def _experiment(name: str, title: str, methods: Sequence[str], steps: int, *, has_groups: bool) -> str:
    """Return the YAML of an experiment; `steps` are those at scale=quick."""
    hmc_steps, burn = (_HMC_OF_GROUPS, _BURN_OF_GROUPS) if has_groups else (_HMC, _BURN)
    counts_by_scale = {
        "smoke": {"warmup": 100, "steps": 300},
        "quick": {"warmup": 500, "steps": steps},
        "long": {"warmup": 2000, "steps": 5 * _STEPS},
    }
    return _EXPERIMENT.format(
        name=name,
        methods="\n".join(f"  - /method@methods.{method}: {method}" for method in methods),
        title=flow(title),
        kept=", ".join(methods),
        temperature=_temperature(methods),
        own=_own_steps(methods, burn),
        **{
            scale: flow(counts | ({"hmc_steps": hmc_steps[scale]} if "hmc" in methods else {}))
            for scale, counts in counts_by_scale.items()
        },
    )


def _temperature(methods: Sequence[str]) -> str:
    """Return the line of an experiment that sets the temperature of the methods that have one."""
    tempered = [method for method in methods if method not in _AT_ONE]
    if not tempered:
        return ""
    others = [method for method in methods if method in _AT_ONE]
    rest = f"; {' and '.join(others)} stay{'s' * (len(others) == 1)} at 1" if others else ""
    return f"temperature: 1.0  # of {', '.join(tempered)}{rest}\n"


def _own_steps(methods: Sequence[str], burn: int) -> str:
    """Return the part of an experiment that gives methods other numbers of steps than the experiment's."""
    chosen = {method: _OWN_STEPS[method] for method in methods if method in _OWN_STEPS}
    if "hmc" not in methods:
        chosen.pop("sgld", None)
    lines = "".join(f"  {method}: {text.replace('BURN', str(burn))}\n" for method, text in chosen.items())
    return f"\nmethods:\n{lines}" if lines else ""


def _columns(facts: Mapping[str, Any]) -> str:
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


def _by_kind(methods: Sequence[str]) -> str:
    """Return the methods in words: which of them are exact."""
    exact = [method for method in methods if method in _EXACT]
    approximate = [method for method in methods if method not in _EXACT]
    sentence = f"{', '.join(exact)} (exact)" if exact else ""
    return "; ".join(
        part for part in (sentence, f"{', '.join(approximate)} (approximate: judge them)") if part
    )


_EXPERIMENT = """\
# @package _global_
# The methods {kept} on one posterior. Pilot runs find step sizes, minibatch sizes and scales.
defaults:
  - /data: {name}
  - /model: {name}
{methods}
  - _self_

title: {title}
{temperature}chains: 4
warmup: ${{scales.${{scale}}.warmup}}
steps: ${{scales.${{scale}}.steps}}
{own}
scales:
  smoke: {smoke}
  quick: {quick}
  long: {long}
"""
_OWN_STEPS = {
    "hmc": '{steps: "${scales.${scale}.hmc_steps}", warmup: BURN}  # fewer: a step is a trajectory on all data',
    "mh_ss": '{steps: "${times:4,${steps}}"}  # more: its steps read few data',
    "sgld": '{steps: "${times:2,${steps}}"}  # more: its steps are cheap, and become shorter',
}
