"""Draws from a regression with correlated features."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from mhrun.array_types import Float64Array
from mhrun.data.dataset import Dataset
from mhrun.data.memory import check_memory
from mhrun.errors import Refusal, check_choice

_CHUNK = 100_000  # rows drawn by one generator
_FAMILIES = ("logistic", "robust", "poisson", "softmax")


class RegressionSample:
    """x_i ~ N(0, R) with R_jk = correlation^|j - k|, and y_i given eta_i = x_i.theta:

    - ``logistic``: y_i = +1 with probability 1 / (1 + exp(-eta_i)), else -1;
    - ``robust``: y_i = eta_i + e_i, e_i ~ Student-t(degrees);
    - ``poisson``: y_i ~ Poisson(exp(eta_i));
    - ``softmax``: y_i = k with probability proportional to exp(x_i.theta_k), k = 0..classes-1.

    Fields: ``x`` (n, dim) and ``y`` (n,), float32. theta is a draw from N(0, I), scaled so that eta has the standard
    deviation `signal`; it depends on `seed`, `dim` and `family` but not on n. It is the attribute `theta`, (dim,) or
    (classes, dim).

    Args:
        n: number of data.
        dim: number of features.
        family: see above.
        correlation: of neighbouring features.
        signal: standard deviation of eta; of each eta_k for ``softmax``.
        degrees: degrees of freedom, for ``robust``.
        classes: number of classes, for ``softmax``.
        seed: of the data, separate from the seed of the chains.

    Raises:
        Refusal: an invalid setting.
    """  # noqa: D415

    def __init__(
        self,
        n: int,
        dim: int,
        family: Literal["logistic", "robust", "poisson", "softmax"] = "logistic",
        correlation: float = 0.5,
        signal: float = 1.0,
        degrees: float = 4.0,
        classes: int = 3,
        seed: int = 0,
    ) -> None:
        if n < 1 or dim < 1:
            raise Refusal(f"n = {n} and dim = {dim} must be at least 1.")
        check_choice("family", family, _FAMILIES)
        if not -1 < correlation < 1:
            raise Refusal(f"correlation = {correlation:g} must lie strictly between -1 and 1.")
        if not (signal > 0 and degrees > 0 and classes >= 2):
            raise Refusal(
                f"signal = {signal:g} and degrees = {degrees:g} must be positive and classes = {classes} at least 2."
            )
        if seed < 0:
            raise Refusal(f"seed = {seed} of the data must not be negative.")
        self.n, self.dim, self.family = n, dim, family
        self.correlation, self.signal, self.degrees = float(correlation), float(signal), float(degrees)
        self.classes, self.seed = classes, seed
        self.theta = self._coefficients()

    def load(self) -> Dataset:
        """Return the data set with the fields ``x`` (n, dim) and ``y`` (n,).

        Raises:
            UserError: they do not fit into memory.
        """
        check_memory(4 * self.n * (self.dim + 1), f"{self.n:,} rows of {self.dim:,} features", "choose fewer")
        x, y = np.empty((self.n, self.dim), np.float32), np.empty(self.n, np.float32)
        starts = range(0, self.n, _CHUNK)
        # One generator per chunk; the first seed is that of theta.
        seeds = np.random.SeedSequence(self.seed).spawn(1 + len(starts))[1:]
        for start, seed in zip(starts, seeds, strict=True):
            part = slice(start, min(start + _CHUNK, self.n))
            rng = np.random.default_rng(seed)
            x[part] = self._features(rng.standard_normal((part.stop - start, self.dim)))
            y[part] = self._outcomes(x[part].astype(np.float64), rng)
        description = f"{self.n:,} draws of a {self.family} regression on {self.dim} features"
        return Dataset({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, description)

    def _coefficients(self) -> Float64Array:
        rng = np.random.default_rng(np.random.SeedSequence(self.seed).spawn(1)[0])
        rows = rng.standard_normal((self.classes if self.family == "softmax" else 1, self.dim))
        lag = np.abs(np.subtract.outer(np.arange(self.dim), np.arange(self.dim)))
        sd = np.sqrt(np.einsum("kd,de,ke->k", rows, self.correlation**lag, rows))
        theta = self.signal * rows / sd[:, None]
        return theta if self.family == "softmax" else theta[0]

    def _features(self, z: Float64Array) -> Float64Array:
        """Return rows of N(0, R) from standard normals, in place: each feature from the one before it."""
        scale = np.sqrt(1 - self.correlation**2)
        for j in range(1, self.dim):
            z[:, j] = self.correlation * z[:, j - 1] + scale * z[:, j]
        return z

    def _outcomes(self, x: Float64Array, rng: np.random.Generator) -> Float64Array:
        eta = x @ self.theta.T
        if self.family == "robust":
            return eta + rng.standard_t(self.degrees, len(x))
        if self.family == "poisson":
            return rng.poisson(np.exp(eta)).astype(np.float64)
        if self.family == "softmax":  # the largest of the logits, each with Gumbel noise
            return np.argmax(eta + rng.gumbel(size=eta.shape), axis=1).astype(np.float64)
        return np.where(rng.logistic(size=len(x)) < eta, 1.0, -1.0)
