"""Draws from a one-dimensional mixture of Gaussians."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from mhrun.array_cache import generated
from mhrun.data.dataset import Dataset
from mhrun.data.memory import check_memory
from mhrun.errors import Refusal, check_choice

_CHUNK = 1_000_000


class MixtureSample:
    """n independent draws of sum_k weights[k] N(means[k], variance), as float32.

    Args:
        n: number of draws.
        means: the components' means.
        variance: their common variance.
        weights: their weights; equal by default.
        seed: of the data, separate from the seed of the chains.
        storage: ``memory``, or ``file``: a memory-mapped file in the cache folder, for n that should
            not be held in memory. Both hold the same numbers.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        n: int,
        means: Sequence[float],
        variance: float = 1.0,
        weights: Sequence[float] | None = None,
        seed: int = 0,
        storage: Literal["memory", "file"] = "memory",
    ) -> None:
        if n < 1:
            raise Refusal(f"n = {n} data cannot be drawn; choose n >= 1.")
        if variance <= 0:
            raise Refusal(f"variance = {variance:g} must be positive.")
        check_choice("storage", storage, ("memory", "file"))
        if not means:
            raise Refusal("means = [] has no component; give at least one mean.")
        if seed < 0:
            raise Refusal(f"seed = {seed} of the data must not be negative.")
        if weights is not None and (
            len(weights) != len(means) or min(weights) < 0 or abs(sum(weights) - 1) > 1e-9
        ):
            raise Refusal(f"weights = {list(weights)} must be {len(means)} shares that sum to 1.")
        self.n = n
        self.means = tuple(float(mean) for mean in means)
        self.variance = float(variance)
        self.weights = tuple(weights) if weights is not None else (1 / len(self.means),) * len(self.means)
        self.seed = seed
        self.storage = storage

    def load(self) -> Dataset:
        """Return the data set with the field ``x`` (n,).

        Raises:
            UserError: they do not fit into memory, or onto the disk with ``storage=file``.
        """
        if self.storage == "memory":
            check_memory(
                4 * self.n,
                f"{self.n:,} draws",
                "choose fewer, or keep them on the disk with data.storage=file",
            )
        x = self._filled(np.empty(self.n, np.float32)) if self.storage == "memory" else self._mapped()
        components = ", ".join(
            f"{w:g} N({m:g}, {self.variance:g})" for w, m in zip(self.weights, self.means, strict=True)
        )
        return Dataset({"x": torch.from_numpy(x)}, f"{self.n:,} draws of {components}")

    def _filled(self, out: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        starts = range(0, self.n, _CHUNK)
        # One generator per chunk: the numbers do not depend on how the work is divided.
        for start, seed in zip(starts, np.random.SeedSequence(self.seed).spawn(len(starts)), strict=True):
            rng = np.random.default_rng(seed)
            size = min(_CHUNK, self.n - start)
            means = np.asarray(self.means)[rng.choice(len(self.means), size, p=self.weights)]
            out[start : start + size] = means + np.sqrt(self.variance) * rng.standard_normal(size)
        return out

    def _mapped(self) -> npt.NDArray[np.float32]:
        recipe = [self.n, self.means, self.variance, self.weights, self.seed]
        return generated("mixture", recipe, self.n, np.float32, self._filled)
