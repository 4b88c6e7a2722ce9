"""Names that an experiment's tables and figures import, in one module."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhrun.array_types import Array
from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS, GREYS, method_styles, styles_of
from mhrun.report.tables import by_rows, shown

Style: TypeAlias = dict[str, Any]
"""Keyword arguments of a drawing function."""
T = TypeVar("T")

__all__ = [
    "COLOURS",
    "GREYS",
    "Array",
    "Axes",
    "Estimate",
    "Figure",
    "Run",
    "Style",
    "by_rows",
    "cached",
    "log_slope",
    "method_styles",
    "monitored",
    "plt",
    "shown",
    "styles_of",
]


def cached(function: Callable[[Run], T]) -> Callable[[Run], T]:
    """Make a function of a run compute its result once for each run (a decorator; see `Run.cached`)."""

    @wraps(function)
    def of_run(run: Run) -> T:
        return run.cached(function)

    return of_run


def monitored(run: Run, method: str, name: str) -> Array:
    """Return a monitor's metric of each chain at each of its runs (C, L)."""
    return np.asarray(run.monitor(method)[name].to_numpy(), dtype=float)


def log_slope(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return the exponent p of y ~ x^p: the regression coefficient of log y on log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])
