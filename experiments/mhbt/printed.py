"""Errors on test images that Wu, Wang & Wong (2020) print (Tables 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Printed(NamedTuple):
    """Errors on the test images in per cent that the paper prints, by method, at each learning rate."""

    rates: Sequence[float]
    median: Mapping[str, Sequence[float]]
    sd: Mapping[str, Sequence[float]]  # empty: not printed
    lowest: Mapping[str, Sequence[float]]


TABLE_1 = Printed(  # 30 trainings
    (0.01, 0.02, 0.05, 0.08, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    {
        "rsgld": (2.01, 1.82, 1.72, 1.75, 1.73, 1.75, 1.7, 1.68, 1.66, 1.71),
        "sgd": (1.81, 1.78, 1.73, 1.75, 1.75, 1.76, 1.85, 89.7, 89.7, 89.8),
        "sgld": (1.81, 1.78, 1.73, 1.72, 1.75, 1.8, 1.84, 89.7, 89.9, 89.8),
    },
    {
        "rsgld": (0.03, 0.03, 0.03, 0.03, 0.04, 0.13, 0.18, 0.33, 11.4, 26.9),
        "sgd": (0.02, 0.02, 0.03, 0.03, 0.06, 16.1, 42.1, 44.4, 33.4, 24.0),
        "sgld": (0.02, 0.02, 0.03, 0.03, 0.07, 33.3, 42.1, 43.3, 26.9, 37.9),
    },
    {},
)
TABLE_2 = Printed(  # 20 trainings
    (0.005, 0.008, 0.02, 0.04),
    {
        "rsgld": (26.93, 26.81, 26.95, 27.34),
        "sgd": (27.03, 27.03, 27.27, 27.85),
        "sgld": (27.00, 26.88, 27.31, 27.85),
    },
    {},
    {
        "rsgld": (26.29, 26.01, 26.36, 26.75),
        "sgd": (26.55, 26.43, 26.85, 27.14),
        "sgld": (26.60, 26.19, 26.70, 27.08),
    },
)
