"""Tables, captions, notes and findings that are declared in files beside an experiment's Python module.

``<module>.yaml`` has a group ``tables`` and a group ``captions``, which are appended to the docstrings of figures and
of tables in Python. ``<module>.<name>.md`` is a template of notes. A report names all of them like functions:
``mhbt.mixture.travel``.

Of the module that computes the metrics, ``<module>.finding.md`` is the template of the one sentence that a report
begins with, and the group ``measure`` of ``<module>.yaml`` names the metric that stands in the table of methods:
``{metric: tv, floor: tv_noise, heading: distance, caption: ...}``. A report names another template as ``finding:``.
The group ``metrics`` explains metrics, for the columns of sweeps.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from mhrun import yaml_file
from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError, nearest
from mhrun.paths import EXPERIMENTS, experiment_module
from mhrun.report.notes import Notes, metrics_of
from mhrun.report.run import Run

_TABLE = {"caption", "of", "rows", "each", "method", "label", "first", "columns", "empty"}
_CELL = {"metric", "printed", "by"}
_GROUPS = {"tables", "captions", "measure", "metrics"}
_MEASURE = {"metric", "floor", "heading", "caption"}


class Measure(NamedTuple):
    """The metric by which an experiment compares its methods, such as a distance from the target."""

    metric: str  # ``<method>.<metric>`` is its address
    floor: str  # the metric with its value under Monte Carlo error alone; empty for none
    heading: str
    caption: str


class Captioned:
    """A report function whose caption is its docstring and a text from a file."""

    def __init__(self, function: Callable[[Any], Any], rest: str) -> None:
        self.function = function
        self.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{rest}"

    def __call__(self, seen: Any) -> Any:
        """Return what the function returns."""
        return self.function(seen)


class Table:
    """A declared table, as a function of a run.

    Rows, one of:

    - nothing: a row for each method of the run. ``rows: [a, b]``: for these methods, in this order; ``rows: function``:
      for those that a function of the module returns.
    - ``each: {name: [words]}`` with ``method:``: a row for each combination of words that makes the name of a method,
      such as ``c{sampler}_{data}``.
    - ``of: function``: a row for each item of the mapping that a function of the module returns; ``label`` is a format
      of its key, such as ``"b = {0}"`` or ``"alpha = {0:g}, m = {1:,}"``.

    ``columns`` leads from headings to metrics of the row's method, to addresses with a dot, or to fields of the row's
    record. In place of a metric may stand ``{printed: ...}``, the numbers of the paper by method (or by the words of
    ``each``, one level for each), or ``{by: function}``, of the run and the method. ``first`` is a function of the
    module that returns rows before all others, label -> metric -> value. ``empty: drop`` leaves empty columns out.
    """

    def __init__(self, module: str, name: str, spec: Mapping[str, Any]) -> None:
        self.module, self.name, self.spec = module, name, spec
        self.__doc__ = str(spec.get("caption", ""))
        self._check(spec, _TABLE)
        if "columns" not in spec:
            raise UserError(f"{self._where}: 'columns' is missing.")
        for value in spec["columns"].values():
            if isinstance(value, Mapping):
                self._check(value, _CELL)

    @property
    def _where(self) -> str:
        return f"table {self.module}.{self.name}"

    def _check(self, node: Mapping[str, Any], known: set[str]) -> None:
        for key in node:
            if key not in known:
                raise UserError(f"{self._where}: there is no key '{key}'.{nearest(str(key), known)}")

    def __call__(self, run: Run) -> pd.DataFrame:
        """Return the table of a run; missing values are None."""
        first = (
            run.cached(getattr(experiment_module(self.module), self.spec["first"]))
            if "first" in self.spec
            else {}
        )
        columns = self.spec["columns"].items()
        rows = {
            label: {heading: found.get(name) for heading, name in columns} for label, found in first.items()
        }
        rows |= dict(self._records(run) if "of" in self.spec else self._by_method(run))
        frame = pd.DataFrame.from_dict(rows, orient="index")
        return frame.dropna(axis=1, how="all") if self.spec.get("empty") == "drop" else frame

    def _metrics(self, run: Run) -> Mapping[str, Any]:
        found: Mapping[str, Any] = metrics_of(self.module, run)
        return found

    def _by_method(self, run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
        found = self._metrics(run)
        for method, words in self._methods(run):
            row = {}
            for heading, value in self.spec["columns"].items():
                if not isinstance(value, Mapping):
                    value = {"metric": value}
                if "metric" in value:
                    address = str(value["metric"]).format(method=method, **words)
                    row[heading] = found.get(f"{method}.{address}", found.get(address))
                elif "by" in value:
                    row[heading] = getattr(experiment_module(self.module), value["by"])(run, method)
                else:
                    row[heading] = _printed(value["printed"], list(words.values()) or [method])
            yield run.label(method), row

    def _methods(self, run: Run) -> Iterator[tuple[str, dict[str, str]]]:
        if "each" not in self.spec:
            rows = self.spec.get("rows") or list(run.methods)
            for method in (
                run.cached(getattr(experiment_module(self.module), rows)) if isinstance(rows, str) else rows
            ):
                if method in run.methods:
                    yield method, {}
            return
        names = list(self.spec["each"])
        for words in itertools.product(*self.spec["each"].values()):
            there = dict(zip(names, words, strict=True))
            method = str(self.spec["method"]).format(**there)
            if method in run.methods:
                yield method, there

    def _records(self, run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
        records = run.cached(getattr(experiment_module(self.module), self.spec["of"]))
        for key, record in records.items():
            words = key if isinstance(key, tuple) else (key,)
            label = str(self.spec.get("label", "{0}")).format(*words)
            yield (
                label,
                {heading: _field(record, str(value)) for heading, value in self.spec["columns"].items()},
            )


def _printed(node: Any, words: Sequence[str]) -> Any:
    """Return a number of the paper, by method or by successive words; ``[value, se]`` is an estimate."""
    for word in words:
        node = node.get(word) if isinstance(node, Mapping) else None
    return Estimate(*map(float, node)) if isinstance(node, list) else node


def _field(record: Any, name: str) -> Any:
    found = record.get(name) if isinstance(record, Mapping) else getattr(record, name)
    return found.item() if isinstance(found, np.generic) else found


def experiment_function(module: str, name: str) -> Callable[[Any], Any]:
    """Return a report function of a module of experiments/, declared in YAML or defined in Python.

    Args:
        module: ``mhbt.mixture``.
        name: of a table, a figure or notes.

    Raises:
        UserError: the declaration cannot be read.
        ModuleNotFoundError: neither the module nor a declaration exists.
        AttributeError: neither the function nor a declaration exists.
    """
    if not all(part.isidentifier() for part in [*module.split("."), name]):
        raise ModuleNotFoundError(f"No module named '{module}'")
    book = _book(module)
    if name in (book.get("tables") or {}):
        return Table(module, name, book["tables"][name])
    notes = EXPERIMENTS.joinpath(*module.split(".")).with_suffix(f".{name}.md")
    if notes.is_file():
        return Notes(module, notes.relative_to(EXPERIMENTS).as_posix())
    function: Callable[[Any], Any] = getattr(experiment_module(module), name)
    caption = (book.get("captions") or {}).get(name)
    return Captioned(function, caption) if caption else function


def measure_of(config: Mapping[str, Any]) -> Measure | None:
    """Return the measure that is declared beside the metrics of a run's experiment, or None.

    Raises:
        UserError: the declaration cannot be read.
    """
    if not (module := _metrics_module(config)) or not (spec := _book(module).get("measure")):
        return None
    for key in spec:
        if key not in _MEASURE:
            raise UserError(f"the measure of {module}: there is no key '{key}'.{nearest(str(key), _MEASURE)}")
    if missing := sorted({"metric", "heading", "caption"} - set(spec)):
        raise UserError(f"the measure of {module}: '{missing[0]}' is missing.")
    return Measure(*(str(spec.get(key, "")) for key in Measure._fields))


_OF_METHODS = {
    "method": "The method, by its label",
    "run": "The beginning of the digest that names the run",
    "accept_rate": "Share of the proposals that are accepted after burn-in",
    "log_ratio_noise_sd": "Standard deviation of the log-ratio from minibatch noise, root mean square over steps",
    "minibatch_size_mean": "Mean number of data behind a decision",
    "all_data_share": "Share of the decisions that read all data",
    "ess": "Effective sample size of the coordinate where it is least",
    "rhat": "R-hat of the coordinate where it is largest",
}


def column_meanings(config: Mapping[str, Any], columns: Sequence[str]) -> dict[str, str]:
    """Return explanations of the columns of a sweep, from declared metrics or table headings of the experiment."""
    module = _metrics_module(config)
    book = _book(module) if module else {}
    known = dict(_OF_METHODS)
    for table in (book.get("tables") or {}).values():
        for heading, metric in (table.get("columns") or {}).items():
            if isinstance(metric, str):
                known.setdefault(metric, str(heading).capitalize())
    if (measure := measure_of(config)) is not None:
        known[measure.metric] = measure.caption
        if measure.floor:
            known[measure.floor] = f"What Monte Carlo error alone makes of {measure.metric}"
    known |= book.get("metrics") or {}
    found = {}
    for name in columns:
        method, dot, metric = str(name).rpartition(".")
        if name in known or metric in known:
            what = known.get(name, known.get(metric, ""))
            found[str(name)] = f"{what}, of {method}" if dot and name not in known else what
    return found


def finding_of(config: Mapping[str, Any]) -> Notes | None:
    """Return the template of the finding of a run's experiment, or None."""
    named = str((config.get("report") or {}).get("finding") or "")
    module, _, name = named.rpartition(".") if named else (_metrics_module(config), "", "finding")
    if not module or not all(part.isidentifier() for part in [*module.split("."), name]):
        return None
    path = EXPERIMENTS.joinpath(*module.split(".")).with_suffix(f".{name}.md")
    return Notes(module, path.relative_to(EXPERIMENTS).as_posix()) if path.is_file() else None


def _metrics_module(config: Mapping[str, Any]) -> str:
    """Return the module of experiments/ that computes the metrics of a run, or an empty string."""
    module = str((config.get("report") or {}).get("metrics") or "").rpartition(".")[0]
    return module if module and all(part.isidentifier() for part in module.split(".")) else ""


@cache
def _book(module: str) -> dict[str, Any]:
    path = EXPERIMENTS.joinpath(*module.split(".")).with_suffix(".yaml")
    if not path.is_file():
        return {}
    try:
        book = yaml_file.loads_ours(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        raise UserError(f"the tables of {module} cannot be read: {first}; mend {path}.") from error
    if not isinstance(book, dict) or set(book) - _GROUPS:
        raise UserError(
            f"the tables of {module} have the groups {', '.join(sorted(_GROUPS))} alone; mend {path}."
        )
    return book
