"""Minibatches: the data that a step of each chain reads, and the error of their means."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.data.transforms import Transforms
from mhrun.random import Draws


class Batches:
    """Draws minibatches of n data.

    Args:
        n: number of data.
        replacement: draw with replacement (independent indices).
        common: use one minibatch for all chains of a step.
        transforms: augmentation and permuted labels of the data in minibatches, or None.
    """

    def __init__(self, n: int, replacement: bool, common: bool, transforms: Transforms | None) -> None:
        self._n = n
        self._replacement = replacement
        self._common = common
        self._transforms = transforms

    def refuses(self, m: int, *, is_open: bool = False) -> str | None:
        """Return why a minibatch of m, or of a size that a pilot is to choose, cannot be drawn, or None."""
        if is_open and self._n == 1:
            return (
                "m = auto needs n >= 2 data. A log density without data counts as one datum: take a method on all "
                "data, such as hmc, mcmc or parallel_tempering, or m = 1."
            )
        if m < 1:
            return f"m = {m} is not a valid minibatch size; choose 1 <= m <= n = {self._n}."
        if m > self._n and not self._replacement:
            return f"m = {m} is more than the n = {self._n} data; choose m <= n, or replacement=true."
        return None

    def draw(self, draws: Draws, m: int) -> Tensor:
        """Return the indices of a fresh minibatch, (C, m) or one for all chains (1, m)."""
        index = draws.index(self._n, m, replacement=self._replacement, common=self._common)
        return self._transformed(index, draws)

    def piece(self, draws: Draws, m: int) -> Tensor:
        """Return the indices of this step's piece (C, m) of a pass over all data in random order.

        A pass has n // m pieces and skips the remaining n mod m data.
        """
        return self._transformed(draws.piece(self._n, m), draws)

    def more(self, draws: Draws, start: int, stop: int, rows: Tensor) -> Tensor:
        """Return elements start..stop of a growing minibatch of chains `rows` (R,): indices (R, stop - start)."""
        index = draws.index(self._n, stop - start, replacement=False, start=start, rows=rows)
        return self._transformed(index, draws, start, rows)

    def _transformed(self, index: Tensor, draws: Draws, start: int = 0, rows: Tensor | None = None) -> Tensor:
        """Return row numbers with the transforms of this step, if the data have any; see `mhrun.data.transforms`."""
        if self._transforms is None:
            return index
        return self._transforms.index(index, draws, start, rows)

    def error_share(self, size: int) -> float:
        """Return the finite-population factor of a minibatch mean's variance: 1 - size/n without replacement, else 1.

        The variance of the mean is var / size times this factor. A factor of 0 makes the error 0. With a positive
        factor the error of a minibatch of one datum is NaN, because its sample variance is undefined.
        """
        if self._n == 1:  # all data, with or without replacement
            return 0.0
        return 1.0 if self._replacement else 1.0 - size / self._n

    def error(self, var: Tensor, m: int) -> Tensor:
        """Return the variance of a minibatch mean, var / m * error_share(m); 0 for all data, even if `var` is NaN."""
        share = self.error_share(m)
        return torch.zeros_like(var) if share == 0 else var / m * share


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sample variance along the last axis, float64; the variance of a single value is NaN."""
    values = values.double()
    return values.mean(-1), values.var(-1) if values.shape[-1] > 1 else torch.full_like(
        values[..., 0], torch.nan
    )
