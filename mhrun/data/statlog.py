"""Three small sets with two classes, for logistic regression: Statlog's Australian, German and Heart."""

from __future__ import annotations

import math

import numpy as np
import torch

from mhrun.array_types import Float64Array
from mhrun.data.dataset import Dataset
from mhrun.data.files import content
from mhrun.errors import Refusal, nearest

# File, how many data, and the class that is y = +1.
_FILES = {
    "australian": ("australian.dat", 690, 1.0),  # the publishers do not name the classes
    "german": ("german.data-numeric", 1000, 2.0),  # a bad risk
    "heart": ("heart.dat", 270, 2.0),  # disease is present
}


class Statlog:
    """One of the three sets: ``x`` (n, D) float64, ``y`` (n,) int8, +1 or -1.

    The first column of x is 1, for the intercept. The others are the covariates, with categories as numbered in the
    file, each standardised to mean 0 and standard deviation 1 (divisor n) unless `standardise` is false. (n, D) is
    (690, 15), (1000, 25) and (270, 14), as in Girolami & Calderhead (2011). Rows are sorted, because copies of the
    files differ in their order; sums are rounded once, so that the bits are the same everywhere.

    Args:
        name: ``australian``, ``german`` or ``heart``.
        standardise: whether covariates are standardised; otherwise they are those of the file.

    Raises:
        Refusal: an unknown set.
    """

    def __init__(self, name: str, standardise: bool = True) -> None:
        if name not in _FILES:
            raise Refusal(f"Statlog's set {name!r} is unknown.{nearest(name, _FILES)}")
        self.name = name
        self.standardise = standardise
        self.n = _FILES[name][1]

    def load(self) -> Dataset:
        """Return the data set, from the file in the data folder.

        Raises:
            UserError: the file is missing or damaged.
        """
        file, _, positive = _FILES[self.name]
        rows = np.array([line.split() for line in content("uci", file).decode().splitlines()], np.float64)
        columns = rows[:, :-1].T
        covariates = [standardised(column) for column in columns] if self.standardise else list(columns)
        x = np.column_stack([np.ones(len(rows)), *covariates])
        y = np.where(rows[:, -1] == positive, np.int8(1), np.int8(-1))
        n, dim = x.shape
        return Dataset(
            {"x": torch.from_numpy(x), "y": torch.from_numpy(y)},
            f"Statlog, {self.name}: {n:,} data, {dim - 1} covariates and an intercept, {(y > 0).sum():,} with y = +1",
        )


def standardised(column: Float64Array) -> Float64Array:
    """Return (x - mean) / sd (n,), with the mean and the standard deviation correctly rounded."""
    deviations = column - math.fsum(column) / len(column)
    return deviations / math.sqrt(math.fsum(deviations * deviations) / len(deviations))
