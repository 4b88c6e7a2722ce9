"""The sizes of minibatches after burn-in, from what a trace adds up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class BatchSizes(NamedTuple):
    """Mean and variance of the minibatch sizes of the decisions after burn-in.

    Attributes:
        n: number of data.
        decisions: of all chains.
        on_all: those that read all data.
        mean: of the sizes of the others; NaN if there are none.
        var: of the sizes of the others.
    """

    n: int
    decisions: int
    on_all: int
    mean: float
    var: float

    @property
    def overall_mean(self) -> float:
        """Mean over all decisions."""
        return (
            self.n if self.on_all == self.decisions else self.n * self._share + self.mean * (1 - self._share)
        )

    @property
    def overall_sd(self) -> float:
        """Standard deviation over all decisions."""
        if self.on_all in (0, self.decisions):
            return 0.0 if self.on_all else self.var**0.5
        share = self._share
        return float(((1 - share) * self.var + share * (1 - share) * (self.n - self.mean) ** 2) ** 0.5)

    @property
    def mean_inverse(self) -> float:
        """Mean of 1 / size over the decisions on minibatches, to second order."""
        return (1 + self.var / self.mean**2) / self.mean if self.mean > 0 else np.nan

    @property
    def _share(self) -> float:
        return self.on_all / self.decisions


def batch_sizes(summary: Mapping[str, Any], n: int, decisions: int) -> BatchSizes:
    """Return the sizes of a method's minibatches.

    The trace adds up their distances from the first size of each chain, and the squares of these: sums of squared sizes
    would lose a small spread of large sizes.
    """
    totals = {
        name: np.asarray(summary["totals"][name], dtype=float)
        for name in ("sum_all_data", "first_batch_size", "sum_size_change", "sum_size_change_squared")
    }
    on_all = totals["sum_all_data"]
    counts = decisions / len(on_all) - on_all  # of each chain, on minibatches
    if not counts.sum() > 0:
        return BatchSizes(n, decisions, int(on_all.sum()), np.nan, np.nan)
    first, change = np.nan_to_num(totals["first_batch_size"]), totals["sum_size_change"]
    means = first + change / np.maximum(counts, 1)
    within = totals["sum_size_change_squared"] - change**2 / np.maximum(counts, 1)
    mean = float(counts @ means / counts.sum())
    var = float((np.maximum(within, 0.0) + counts * (means - mean) ** 2).sum() / counts.sum())
    return BatchSizes(n, decisions, int(on_all.sum()), mean, var)
