"""Tables, captions, notes and findings that are declared in files beside an experiment's Python module.

``<module>.yaml`` has a group ``tables`` (see `mhrun.report.declared_table`) and a group ``captions``, which are
appended to the docstrings of figures and of tables in Python. Its group ``calls`` has tables and figures that a
function makes from arguments: ``{caption: ..., function: shared.measures.size_histograms, with: {cells: 20}}``.
``<module>.<name>.md`` is a template of notes. A report names all of them like functions: ``mhbt.mixture.travel``.
The group ``printed`` has numbers of the paper for the module's Python code, which `printed` returns.

Of the module that computes the metrics, ``<module>.finding.md`` is the template of the one sentence that a report
begins with, and the group ``measure`` of ``<module>.yaml`` names the metric that the table of methods shows:
``{metric: tv, floor: tv_noise, heading: distance, caption: ...}``. A report names another template as ``finding:``.
The group ``metrics`` explains metrics, for the columns of sweeps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import yaml

from mhrun import yaml_file
from mhrun.errors import UserError, nearest, reason
from mhrun.paths import EXPERIMENTS, experiment_module
from mhrun.report.declared_table import Table
from mhrun.report.notes import Notes

_GROUPS = {"calls", "captions", "measure", "metrics", "printed", "tables"}
_CALL = {"caption", "function", "with"}
_MEASURE = {"metric", "floor", "heading", "caption"}


def unknown_metrics(config: Mapping[str, Any], known: Collection[str], of: str) -> list[str]:
    """Return a line for each metric that ``report.sweep`` names and that is not known; `of` is what has none."""
    named = dict.fromkeys(map(str, (config.get("report") or {}).get("sweep") or []))
    return [
        f"report.sweep names {name}, a metric that {of} has.{nearest(name, known)}"
        for name in named
        if name not in known
    ]


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


class Call:
    """A declared table or figure that a function of experiments/ makes from a run (or runs) and arguments."""

    def __init__(self, module: str, name: str, spec: Mapping[str, Any]) -> None:
        where = f"{module}.{name}"
        for key in spec:
            if key not in _CALL:
                raise UserError(f"{where}: there is no key '{key}'.{nearest(str(key), _CALL)}")
        if "function" not in spec:
            raise UserError(f"{where}: 'function' is missing.")
        path, _, self.function = str(spec["function"]).rpartition(".")
        self.module, self.arguments = path or module, dict(spec.get("with") or {})
        self.__doc__ = str(spec.get("caption", ""))

    def __call__(self, seen: Any) -> Any:
        """Return what the function returns."""
        return getattr(experiment_module(self.module), self.function)(seen, **self.arguments)


def printed(module: str) -> dict[str, Any]:
    """Return the group ``printed`` of a module's YAML file: numbers of the paper.

    Raises:
        UserError: the file cannot be read.
    """
    return dict(_declarations(module).get("printed") or {})


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
    declared = _declarations(module)
    if name in (declared.get("tables") or {}):
        return Table(module, name, declared["tables"][name])
    if name in (declared.get("calls") or {}):
        return Call(module, name, declared["calls"][name])
    notes = EXPERIMENTS.joinpath(*module.split(".")).with_suffix(f".{name}.md")
    if notes.is_file():
        return Notes(module, notes.relative_to(EXPERIMENTS).as_posix())
    function: Callable[[Any], Any] = getattr(experiment_module(module), name)
    caption = (declared.get("captions") or {}).get(name)
    return Captioned(function, caption) if caption else function


def measure_of(config: Mapping[str, Any]) -> Measure | None:
    """Return the measure that is declared beside the metrics of a run's experiment, or None.

    Raises:
        UserError: the declaration cannot be read.
    """
    if not (module := _metrics_module(config)) or not (spec := _declarations(module).get("measure")):
        return None
    for key in spec:
        if key not in _MEASURE:
            raise UserError(f"the measure of {module}: there is no key '{key}'.{nearest(str(key), _MEASURE)}")
    if missing := sorted({"metric", "heading", "caption"} - set(spec)):
        raise UserError(f"the measure of {module}: '{missing[0]}' is missing.")
    return Measure(*(str(spec.get(key, "")) for key in Measure._fields))


OF_METHODS = {
    "method": "The method, by its label",
    "run": "The beginning of the digest that names the run",
    "accept_rate": "Share of the proposals that are accepted after burn-in",
    "log_ratio_noise_sd": "Standard deviation of the log-ratio from minibatch noise, root mean square over steps",
    "minibatch_size_mean": "Mean number of data behind a decision",
    "all_data_share": "Share of the decisions that read all data",
    "ess": "Effective sample size of the coordinate where it is least",
    "rhat": "R-hat of the coordinate where it is largest",
    "draws_temperature": "Temperature at the last step; 1 is the posterior",
    "data_per_step": "Mean number of data that a step reads",
    "ess_per_million": "Effective sample size for each million evaluations; – for methods that are too short to judge",
    "ess_per_second": "Effective sample size for each second of wall time of all chains after burn-in, which depends "
    "on what else the machine does; – likewise",
}


_HEADINGS = {
    "accept_rate": "acceptance",
    "log_ratio_noise_sd": "noise sd",
    "minibatch_size_mean": "minibatch size",
    "all_data_share": "share of decisions on all data",
    "ess": "ESS",
    "rhat": "R-hat",
    "draws_temperature": "T",
    "data_per_step": "data per step",
    "ess_per_million": "ESS per 10^6",
    "ess_per_second": "ESS per s",
}


def column_headings(config: Mapping[str, Any], columns: Sequence[str]) -> dict[str, str]:
    """Return headings of the columns of a sweep: those of the experiment's tables, or else the names in words."""
    module = _metrics_module(config)
    declared = _declarations(module) if module else {}
    heading_of = dict(_HEADINGS)
    if (measure := measure_of(config)) is not None:
        heading_of[measure.metric] = measure.heading
    for metric, heading in _table_headings(declared):
        heading_of.setdefault(metric, heading)
    headings: dict[str, str] = {}
    for name in columns:
        method, dot, metric = name.rpartition(".")
        heading = heading_of.get(name) or (
            f"{method}: {heading_of[metric]}" if dot and metric in heading_of else name
        )
        headings[name] = name if heading in headings.values() else heading
    return headings


def _table_headings(declared: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each metric that a declared table shows, with its heading there."""
    for table in (declared.get("tables") or {}).values():
        for heading, metric in (table.get("columns") or {}).items():
            if isinstance(metric, str):
                yield metric, str(heading)


def column_meanings(config: Mapping[str, Any], columns: Sequence[str]) -> dict[str, str]:
    """Return explanations of the columns of a sweep, from declared metrics or table headings of the experiment."""
    module = _metrics_module(config)
    declared = _declarations(module) if module else {}
    meaning_of = dict(OF_METHODS)
    for metric, heading in _table_headings(declared):
        meaning_of.setdefault(metric, heading.capitalize())
    if (measure := measure_of(config)) is not None:
        meaning_of[measure.metric] = measure.caption
        if measure.floor:
            meaning_of[measure.floor] = f"What Monte Carlo error alone makes of {measure.metric}"
    meaning_of |= declared.get("metrics") or {}
    meanings = {}
    for name in columns:
        method, dot, metric = str(name).rpartition(".")
        if name in meaning_of or metric in meaning_of:
            meaning = meaning_of.get(name, meaning_of.get(metric, ""))
            meanings[str(name)] = f"{meaning}, of {method}" if dot and name not in meaning_of else meaning
    return meanings


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
def _declarations(module: str) -> dict[str, Any]:
    path = EXPERIMENTS.joinpath(*module.split(".")).with_suffix(".yaml")
    if not path.is_file():
        return {}
    try:
        declared = yaml_file.loads_trusted(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"the tables of {module} cannot be read: {reason(error)}; fix {path}.") from error
    if not isinstance(declared, dict) or set(declared) - _GROUPS:
        raise UserError(
            f"the tables of {module} have the groups {', '.join(sorted(_GROUPS))} alone; fix {path}."
        )
    return declared
