"""Notes of a report: Jinja Markdown templates beside an experiment."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from numbers import Integral
from types import ModuleType
from typing import Any

import jinja2
import numpy as np
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mhrun.messages import listed
from mhrun.paths import EXPERIMENTS, experiment_module
from mhrun.report.efficiency import has_stopped
from mhrun.report.metrics import Metric, MetricTable, value
from mhrun.report.run import Run
from mhrun.report.tables import quoted, shown

_TAGS_ALONE = re.compile(r"(?m)^[ \t]*((?:\{%(?! include)(?:(?!%\}).)*%\}[ \t]*)+)\n")


class _Lines(Extension):
    """Takes away the end of lines that are tags alone: a line that ends in a tag keeps its own, as a space."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return _TAGS_ALONE.sub(r"\1", source)


class Notes:
    """The notes of a template, as a function of a run or of the runs of a sweep: a text for each paragraph.

    A template sees ``run`` (or ``runs``), ``config``, ``found`` (the metrics) and the public functions and constants of
    the Python module beside it. ``has("a", "b")`` is true if the run has all of these methods, ``has_any`` if it has
    one; ``names(methods)`` lists their labels, ``temperature_of(methods)`` is the temperature that they share.
    ``values_of("tv")`` leads from the methods that have a metric to its value; ``least`` and ``most`` return the method
    where it is smallest or largest, ``above(values, x)`` and ``below(values, x)`` the methods where it is more than x,
    or less. Numbers are shown by the filter ``shown``, as in tables, or by ``fmt(",.2f")``, which takes an estimate
    too. A name that is not there is an error. A line of tags alone leaves nothing behind.

    Templates are read from experiments/ alone and run in Jinja's sandbox.
    """

    def __init__(self, module: str, path: str) -> None:
        self.module, self.path = module, path
        self.__doc__ = "Notes."

    def __call__(self, seen: Any) -> list[str]:
        """Return the paragraphs, each on one line.

        Raises:
            jinja2.TemplateError: the template is invalid, or names something that does not exist.
        """
        context: dict[str, Any] = dict(_public(_module(self.module)))
        if isinstance(seen, Run) or hasattr(seen, "methods"):
            run_methods = set(seen.methods)
            context["run"] = seen
            context["has"] = lambda *methods: run_methods >= set(methods)
            context["has_any"] = lambda *methods: bool(run_methods & set(methods))
            context["names"] = lambda methods: listed(quoted(seen.label(method)) for method in methods)
            context["temperature_of"] = lambda methods: _temperature_of(seen, methods)
            first = seen
        else:
            context |= {"runs": seen}
            first = seen[0]
        context |= {"config": first.config}
        metrics = metrics_of(self.module, first) if "run" in context else context["sweep_metrics"](seen)
        table = MetricTable(metrics)
        context |= {"found": table, "values_of": lambda metric: _values_of(table, seen, metric)}
        text = _environment().get_template(self.path).render(context)
        return paragraphs(text)


def _temperature_of(run: Run, methods: Iterable[str]) -> str:
    """Return the temperature that methods sample at, as "T = 1,000"; empty where it is not the same."""
    temperatures = {run.samples(method).temperature for method in methods}
    return f"T = {shown(temperatures.pop())}" if len(temperatures) == 1 else ""


def metrics_of(module: str, run: Any) -> Mapping[str, Metric]:
    """Return the metrics of a run by the function ``metrics`` of a module; by that of its report where it has none."""
    function = getattr(_module(module), "metrics", None)
    if function is None:
        path = str((run.config.get("report") or {}).get("metrics", ""))
        where, _, name = path.rpartition(".")
        function = getattr(experiment_module(where), name)
    metrics: Mapping[str, Metric] = run.cached(function)
    return metrics


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, separated by empty lines, each on one line."""
    parts = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return [part for part in parts if part]


def _values_of(table: MetricTable, run: Any, metric: str) -> dict[str, float]:
    """Return the finite values of a metric by method, in the order of the run, without methods with stopped chains."""
    methods: Mapping[str, Mapping[str, Any]] = getattr(run, "methods", {})
    unstopped = [method for method, summary in methods.items() if not has_stopped(summary)]
    numbers = {method: table.number(f"{method}.{metric}") for method in unstopped}
    return {method: number for method, number in numbers.items() if np.isfinite(number)}


def least(values: Mapping[str, float]) -> str:
    """Return the key of the smallest value."""
    return min(values, key=lambda key: values[key])


def most(values: Mapping[str, float]) -> str:
    """Return the key of the largest value."""
    return max(values, key=lambda key: values[key])


def above(values: Mapping[str, float], limit: float) -> list[str]:
    """Return the keys whose values are larger than `limit`."""
    return [key for key, number in values.items() if number > limit]


def below(values: Mapping[str, float], limit: float) -> list[str]:
    """Return the keys whose values are smaller than `limit`."""
    return [key for key, number in values.items() if number < limit]


def fmt(number: Any, how: str) -> str:
    """Return a number by a format of Python's; of an estimate its value."""
    return format(number if isinstance(number, str | Integral) else value(number), how)


def percent(found: MetricTable, short: str) -> str:
    """Return a share as ``12.3 %``; ``nan %`` where there is none."""
    return f"{100 * found.number(short):.1f} %"


def _module(name: str) -> ModuleType | None:
    """Return a module of the experiments, or None if there is none of this name."""
    try:
        return experiment_module(name)
    except ModuleNotFoundError:
        return None


def _public(module: ModuleType | None) -> dict[str, Any]:
    return {
        name: member
        for name, member in vars(module or object).items()
        if not name.startswith("_") and not inspect.isclass(member) and not _is_foreign(member)
    }


def _is_foreign(member: Any) -> bool:
    """Return whether this is a module that is not another of the experiments."""
    return inspect.ismodule(member) and not member.__name__.startswith(
        experiment_module("shared").__name__.partition(".")[0]
    )


@cache
def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(EXPERIMENTS),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # Markdown; the page escapes what it shows
        extensions=[_Lines],
    )
    environment.filters |= {"shown": shown, "fmt": fmt, "percent": percent, "value": value}
    functions: tuple[Callable[..., Any], ...] = (
        value,
        shown,
        fmt,
        min,
        max,
        sum,
        len,
        abs,
        round,
        sorted,
        any,
        all,
        listed,
        least,
        most,
        above,
        below,
    )
    environment.globals |= {function.__name__: function for function in functions}
    environment.globals |= {"sqrt": np.sqrt, "log": np.log, "isfinite": np.isfinite, "enumerate": enumerate}
    environment.globals |= {"zip": zip, "set": set, "str": str, "int": int, "float": float, "list": list}
    return environment
