"""Tables of a run that are declared in YAML: rows, columns, and the numbers of the paper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError, nearest
from mhrun.paths import experiment_module
from mhrun.report.metrics import Address, MetricTable
from mhrun.report.notes import metrics_of
from mhrun.report.run import Run

_TABLE = {"caption", "of", "rows", "each", "method", "label", "first", "columns", "empty"}
_CELL = {"metric", "printed", "by", "series"}


class Table:
    """A declared table, as a function of a run.

    Rows, one of:

    - nothing: a row for each method of the run. ``rows: [a, b]``: for these methods, in this order; ``rows: function``:
      for those that a function of the module returns. It may return pairs of methods, of which ``label`` is a format
      of both labels, such as ``"{0} over {1}"``; metrics are of the first, and ``{1}`` in them is the second.
    - ``each: {name: [words]}`` with ``method:``: a row for each combination of words that makes the name of a method,
      such as ``c{sampler}_{data}``.
    - ``of: function``: a row for each item of the mapping that a function of the module returns; ``label`` is a format
      of its key, such as ``"b = {0}"`` or ``"alpha = {0:g}, m = {1:,}"``.

    ``columns`` leads from headings to metrics of the row's method, to addresses with a dot, or to fields of the row's
    record. In place of a metric may stand ``{printed: ...}``, the numbers of the paper by method (or by the words of
    ``each``, one level for each), ``{by: function}``, of the run and the method, or ``{series: metric}``: a column for
    each x of a metric, whose heading is a format of x such as ``"M = {0}"``. ``first`` is a function of the module that
    returns rows before all others, label -> metric -> value. ``empty: drop`` leaves out rows and columns without a
    value.
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

    def _check(self, node: Mapping[str, Any], allowed: set[str]) -> None:
        for key in node:
            if key not in allowed:
                raise UserError(f"{self._where}: there is no key '{key}'.{nearest(str(key), allowed)}")

    def __call__(self, run: Run) -> pd.DataFrame:
        """Return the table of a run; missing values are None."""
        first = run.cached(self._function(self.spec["first"])) if "first" in self.spec else {}
        columns = self.spec["columns"].items()
        rows = {
            label: {heading: record.get(name) for heading, name in columns} for label, record in first.items()
        }
        rows |= dict(self._records(run) if "of" in self.spec else self._by_method(run))
        frame = pd.DataFrame.from_dict(rows, orient="index")
        if self.spec.get("empty") != "drop":
            return frame
        return frame.dropna(axis=1, how="all").dropna(axis=0, how="all")

    def _function(self, name: str) -> Any:
        return getattr(experiment_module(self.module), name)

    def _by_method(self, run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
        metrics = metrics_of(self.module, run)
        columns = dict(self._columns(metrics))
        for method, words in self._methods(run):
            row = {}
            for heading, cell in columns.items():
                if "metric" in cell:
                    address = str(cell["metric"]).format(*words.values(), method=method, **words)
                    row[heading] = metrics.get(f"{method}.{address}", metrics.get(address))
                elif "by" in cell:
                    row[heading] = self._function(cell["by"])(run, method)
                else:
                    row[heading] = _printed(cell["printed"], list(words.values()) or [method])
            label = run.label(method)
            if "other" in words:
                label = str(self.spec.get("label", "{0}, {1}")).format(*map(run.label, words.values()))
            yield label, row

    def _columns(self, metrics: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield headings and cells, with a column for each x of a series."""
        for heading, cell in self.spec["columns"].items():
            if not isinstance(cell, Mapping):
                yield heading, {"metric": cell}
            elif "series" in cell:
                for x in MetricTable(metrics).places(cell["series"]):
                    yield heading.format(x), {"metric": Address("", cell["series"], x).short}
            else:
                yield heading, cell

    def _methods(self, run: Run) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the methods of the rows that the run has, each with its words; the words of a pair are its methods."""
        if "each" in self.spec:
            for words in itertools.product(*self.spec["each"].values()):
                choices = dict(zip(self.spec["each"], words, strict=True))
                method = str(self.spec["method"]).format(**choices)
                if method in run.methods:
                    yield method, choices
            return
        rows = self.spec.get("rows") or list(run.methods)
        for row in run.cached(self._function(rows)) if isinstance(rows, str) else rows:
            if isinstance(row, str) and row in run.methods:
                yield row, {}
            elif not isinstance(row, str) and set(row) <= set(run.methods):
                yield row[0], dict(zip(("one", "other"), row, strict=True))

    def _records(self, run: Run) -> Iterator[tuple[str, dict[str, Any]]]:
        for key, record in run.cached(self._function(self.spec["of"])).items():
            words = key if isinstance(key, tuple) else (key,)
            label = str(self.spec.get("label", "{0}")).format(*words)
            columns = self.spec["columns"].items()
            yield label, {heading: _field(record, str(value)) for heading, value in columns}


def _printed(node: Any, words: Sequence[str]) -> Any:
    """Return a number of the paper, by method or by successive words; ``[value, se]`` is an estimate."""
    for word in words:
        node = node.get(word) if isinstance(node, Mapping) else None
    return Estimate(*map(float, node)) if isinstance(node, list) else node


def _field(record: Any, name: str) -> Any:
    field = record.get(name) if isinstance(record, Mapping) else getattr(record, name)
    return field.item() if isinstance(field, np.generic) else field
