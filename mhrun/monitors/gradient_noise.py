"""Tests whether the noise of minibatch gradients is normal."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from scipy.stats import shapiro
from torch import Tensor

from mhrun.data import Dataset
from mhrun.errors import Refusal
from mhrun.monitors.predictive import Predictive
from mhrun.random import Draws, Streams, derive_key
from mhrun.target import Source, Target


class GradientNoise(Predictive):
    """The metrics of `Predictive`, and the Shapiro-Wilk test of minibatch gradients for each coordinate.

    Each row has, for each minibatch size b, from the gradients of `repeats` fresh minibatches at the chain's theta:

    - ``normal_b``: the share of the coordinates at which normality is not rejected at 5 % (0.95 for normal noise);
    - ``w_b``: the mean of the statistic W over them;
    - ``still_b``: the share of the coordinates that are not tested because their gradient is the same in more than half
      of the minibatches, as behind a dead unit or an always dark pixel (Luo et al. 2020, Appendix C);
    - ``variance_b``: V, the variance of the estimated gradient of the full-data log posterior, averaged over all D
      coordinates, tested or not; b = e V / 2 in the step-scaled variables of a thermostat (ibid., eq. 2 and 20).

    Args:
        data: the test data.
        every: steps between two rows of metrics.
        sizes: the minibatch sizes b.
        repeats: minibatches of each size.
        coordinates: number of coordinates tested; they are drawn at random once.
        seed: of the coordinates and of the minibatches.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        data: Dataset | Source | Any,
        every: int,
        sizes: Sequence[int] = (16, 128, 512),
        repeats: int = 50,
        coordinates: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(data, every)
        if not sizes or min(sizes) < 1 or repeats < 3 or coordinates < 1:
            raise Refusal("GradientNoise needs sizes of at least 1, repeats >= 3 and coordinates >= 1.")
        self.sizes = [int(b) for b in sizes]
        self.repeats = repeats
        self.coordinates = coordinates
        self.seed = seed

    def refuses(self, target: Target) -> str | None:
        """Return the reason of `Predictive`, or why a minibatch cannot be drawn from the data, or None."""
        reasons = (target.batches.refuses(b) for b in self.sizes)
        return super().refuses(target) or next((reason for reason in reasons if reason), None)

    def observe(
        self,
        target: Target,
        memory: Mapping[str, Tensor],
        step: int,
        theta: Tensor,
        valid: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Test the gradients at theta (C, D) at every `every`-th step."""
        new, metrics = super().observe(target, memory, step, theta, valid)
        if self.emits(step):
            for b in self.sizes:
                metrics |= self._tested(target, theta, step, b)
        return new, metrics

    def _tested(self, target: Target, theta: Tensor, step: int, b: int) -> dict[str, Tensor]:
        coordinates = torch.from_numpy(
            np.random.default_rng(self.seed).permutation(target.dim)[: self.coordinates]
        ).to(theta.device)
        streams = Streams(derive_key(self.seed, f"gradient noise {step} {b}"), len(theta), theta.device)
        temperature = torch.ones_like(theta[:, 0])
        sampled = []
        parameters = theta[:, : target.dim]
        mean, squares = (torch.zeros_like(parameters, dtype=torch.float64) for _ in range(2))  # Welford's
        # One minibatch at a time: gradients of wide networks fill the memory.
        for repeat in range(self.repeats):
            index = Draws(streams, repeat, ahead=1).index(target.n, b, replacement=target.replacement)
            gradient = target.gradients.reduced(theta, index, temperature)
            sampled.append(gradient[:, coordinates])
            gap = gradient - mean
            mean += gap / (repeat + 1)
            squares += gap * (gradient - mean)
        gradients = torch.stack(sampled, 1).double().cpu().numpy()  # (C, R, K)
        still = (gradients == np.median(gradients, axis=1, keepdims=True)).mean(1) > 0.5
        metrics = {name: np.full(len(theta), np.nan) for name in (f"normal_{b}", f"w_{b}")}
        for c in range(len(theta)):
            moving = gradients[c][:, ~still[c]]
            if moving.size and np.isfinite(moving).all():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of ties, which a few coordinates have
                    w, p = shapiro(moving / moving.std(axis=0), axis=0)
                metrics[f"normal_{b}"][c], metrics[f"w_{b}"][c] = (p >= 0.05).mean(), w.mean()
        metrics[f"still_{b}"] = still.mean(1)
        metrics[f"variance_{b}"] = (squares.mean(1) / (self.repeats - 1)).cpu().numpy()
        return {name: torch.from_numpy(value).to(theta.device) for name, value in metrics.items()}
