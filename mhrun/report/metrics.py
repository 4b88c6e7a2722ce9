"""The metrics of a report as one long table: method, metric, x, value, standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError, nearest

Metric: TypeAlias = Estimate | float
Metrics: TypeAlias = dict[str, Metric]


class Address(NamedTuple):
    """The columns that name a row of the table.

    Its short form, the key of `MetricTable` and of summary.json, is ``<method>.<metric>``, followed by ``_<x>``
    where there is an x.
    """

    method: str
    metric: str
    x: float | str | None = None

    @property
    def short(self) -> str:
        """The short form."""
        end = "" if self.x is None else f"_{self.x:g}" if isinstance(self.x, float) else f"_{self.x}"
        return ".".join(part for part in (self.method, f"{self.metric}{end}") if part)


class MetricTable(dict[str, Metric]):
    """The metrics of a run: a mapping from short addresses to values, which knows the columns of each.

    A plain mapping ``"<method>.<metric>": value`` can be used wherever this is expected; its keys are split at
    their first dot, and its x column is empty.
    """

    def __init__(self, found: Mapping[str, Metric] | Iterable[tuple[str, Metric]] = ()) -> None:
        super().__init__(found)
        self._columns: dict[str, Address] = dict(found._columns) if isinstance(found, MetricTable) else {}

    @classmethod
    def by_method(
        cls,
        run: Any,
        function: Callable[[Any, str], Mapping[str, Metric]],
        methods: Iterable[str] | None = None,
    ) -> MetricTable:
        """Return ``function(run, method)``, a mapping from metrics to values, of each method of a run.

        Args:
            run: the run.
            function: computes the metrics of one method.
            methods: names; those that the run does not have are left out. None: all of the run.
        """
        table = cls()
        for method in run.methods if methods is None else methods:
            if method in run.methods:
                table.add(method, function(run, method))
        return table

    def add(self, method: str, found: Mapping[str, Metric], x: float | str | None = None) -> None:
        """Add rows of one method: a mapping from metrics to values, all at one x."""
        for metric, number in found.items():
            address = Address(method, metric, x)
            self[address.short] = number
            if x is not None:
                self._columns[address.short] = address

    def series(self, method: str, metric: str, values: Mapping[Any, Metric]) -> None:
        """Add rows of one metric at several x: a mapping from x to values."""
        for x, number in values.items():
            self.add(method, {metric: number}, x)

    def of(self, method: str) -> dict[str, Metric]:
        """Return the metrics of one method without its name."""
        start = f"{method}."
        return {key.removeprefix(start): number for key, number in self.items() if key.startswith(start)}

    def having(self, metric: str) -> list[float]:
        """Return the values of one metric of all methods that have it."""
        return [value(number) for short, number in self.items() if self.address(short)[1:] == (metric, None)]

    def places(self, metric: str) -> list[Any]:
        """Return the x at which any method has a metric, in increasing order."""
        return sorted({at.x for at in self._columns.values() if at.metric == metric})

    def number(self, short: str) -> float:
        """Return the value at a short address, without its standard error; NaN if there is none."""
        return value(self.get(short))

    def __or__(self, other: Mapping[str, Metric]) -> MetricTable:  # type: ignore[override]
        table = MetricTable(self)
        table.update(other)
        if isinstance(other, MetricTable):
            table._columns |= other._columns
        return table

    def __ior__(self, other: Mapping[str, Metric]) -> MetricTable:  # type: ignore[override]
        self.update(other)
        if isinstance(other, MetricTable):
            self._columns |= other._columns
        return self

    def address(self, short: str) -> Address:
        """Return the columns of a short address."""
        if short in self._columns:
            return self._columns[short]
        method, dot, metric = short.partition(".")
        return Address(method, metric) if dot else Address("", short)


def long_table(found: Mapping[str, Metric]) -> pd.DataFrame:
    """Return metrics as a frame with the columns ``method, metric, x, value, se``, a row for each."""
    table = found if isinstance(found, MetricTable) else MetricTable(found)
    rows = []
    for short, number in table.items():
        se = number.se if isinstance(number, Estimate) else None
        rows.append((*table.address(short), value(number), se))
    return pd.DataFrame(rows, columns=["method", "metric", "x", "value", "se"])


def short_address(value: Any, where: str = "") -> str:
    """Return the short form of an address as YAML has it: the short form, or ``{method:, metric:, x:}``.

    Raises:
        UserError: it is neither.
    """
    if isinstance(value, str):
        return value
    columns = Address._fields
    if isinstance(value, Mapping):
        for key in value:
            if key not in columns:
                raise UserError(f"{where}: there is no column '{key}'.{nearest(str(key), columns)}")
        if "metric" in value:
            return Address(str(value.get("method", "")), str(value["metric"]), value.get("x")).short
    raise UserError(f"{where}: {value!r} is not an address; write METHOD.METRIC or {{method:, metric:, x:}}.")


def to_json(found: Mapping[str, Metric]) -> dict[str, Any]:
    """Return metrics for JSON; one with a standard error is a mapping of ``value`` and ``se``."""
    return {
        name: {"value": number.value, "se": number.se} if isinstance(number, Estimate) else number
        for name, number in found.items()
    }


def from_json(stored: Mapping[str, Any]) -> Metrics:
    """Return metrics that `to_json` has made, or whose errors are in pairs (value, se); null is NaN."""

    def read(number: Any) -> Metric:
        if isinstance(number, Mapping):
            number = [number["value"], number["se"]]
        if isinstance(number, list):
            return Estimate(*(math.nan if part is None else part for part in number))
        plain: float = math.nan if number is None else number
        return plain

    return {name: read(number) for name, number in stored.items()}


def value(found: Metric | None) -> float:
    """Return a number without its standard error; NaN for None."""
    if found is None:
        return float("nan")
    return found.value if isinstance(found, Estimate) else float(found)


def estimate(by_chain: npt.ArrayLike) -> Estimate:
    """Return the mean over independent trials (C,) with its standard error; NaN without any.

    The error is NaN for a single trial, and where a value is not finite.
    """
    values = np.asarray(by_chain, dtype=float)
    if not values.size:
        return Estimate(math.nan, math.nan)
    has_error = len(values) > 1 and bool(np.isfinite(values).all())
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if has_error else math.nan
    return Estimate(float(values.mean()), error)
