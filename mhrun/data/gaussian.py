"""Draws from a Gaussian of unit covariance."""

from __future__ import annotations

import numpy as np

from mhrun.data.dataset import Dataset
from mhrun.data.memory import check_memory
from mhrun.errors import Refusal


class GaussianSample:
    """n draws from N(mean, I_D): field ``x`` (n, D), float32.

    Args:
        n: how many.
        dim: D.
        mean: of each coordinate.
        seed: of the draws.

    Raises:
        Refusal: an invalid count or a negative seed.
    """

    def __init__(self, n: int, dim: int, mean: float = 0.0, seed: int = 0) -> None:
        if n < 1 or dim < 1:
            raise Refusal(f"n = {n} and dim = {dim} must be at least 1.")
        if seed < 0:
            raise Refusal(f"seed = {seed} of the data must not be negative.")
        self.n = n
        self.dim = dim
        self.mean = mean
        self.seed = seed

    def load(self) -> Dataset:
        """Return the data.

        Raises:
            UserError: they do not fit into memory.
        """
        import torch

        check_memory(8 * self.n * self.dim, f"{self.n:,} draws in {self.dim:,} dimensions", "choose fewer")
        draws = np.random.default_rng(self.seed).standard_normal((self.n, self.dim), dtype=np.float32)
        return Dataset({"x": torch.from_numpy(draws + np.float32(self.mean))})
