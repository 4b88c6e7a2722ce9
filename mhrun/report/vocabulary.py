"""What tables and figures of an experiment are made of, in one place to import from."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy.typing as npt
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mhrun.diagnostics.grid import Estimate
from mhrun.report.run import Run
from mhrun.report.style import COLOURS, GREYS, method_styles
from mhrun.report.tables import by_rows, shown

Array: TypeAlias = npt.NDArray[Any]
Style: TypeAlias = dict[str, Any]
"""Keyword arguments of a drawing function."""

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
    "method_styles",
    "plt",
    "shown",
]
