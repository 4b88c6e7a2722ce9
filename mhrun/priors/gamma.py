"""Gaussian priors whose precisions have a gamma prior."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.random import Draws, Purpose
from mhrun.target import Target
from mhrun.types import blocks_of


class GammaPrecision:
    """p(theta_b) = N(0, I / (2 gamma_b)) for each block b of theta, gamma_b ~ Gamma(shape, rate), resampled by Gibbs.

    Li & Wong (2017), appendix C, after Chen, Fox & Guestrin (2014): log p = -gamma_b |theta_b|^2 and
    gamma_b | theta ~ Gamma(shape + d_b / 2, rate + |theta_b|^2), with d_b the size of the block. (In the paper's text
    the shape is unchanged, which is the conditional only without the Gaussian's normalising constant gamma^(d/2).)

    The precisions are drawn from their conditional at T = 1, at any temperature of theta.

    Args:
        shape: shape of the gamma prior; 2 shape must be an integer.
        rate: rate of the gamma prior, 1 / scale.
        every: steps between two Gibbs steps.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(self, shape: float = 2.0, rate: float = 1.0, every: int = 300) -> None:
        if not (0 < shape < math.inf and 2 * shape == int(2 * shape) and rate > 0 and every >= 1):
            raise Refusal("GammaPrecision needs shape > 0 with 2 shape whole, rate > 0 and every >= 1.")
        self.shape = shape
        self.rate = rate
        self.every = every

    def refuses(self, target: Target) -> str | None:
        """Return why the target is incompatible, or None: the model must declare its blocks."""
        return None if blocks_of(target.model) else "gamma priors need a model with blocks of parameters."

    def start(self, target: Target, theta: Tensor) -> dict[str, Tensor]:
        """Return the means of the gamma prior, (C, blocks)."""
        count = len(blocks_of(target.model))
        return {"gamma": theta.new_full((len(theta), count), self.shape / self.rate)}

    def resample(
        self, target: Target, theta: Tensor, aux: dict[str, Tensor], draws: Draws
    ) -> dict[str, Tensor]:
        """Redraw the precisions every `every` steps."""
        if not draws.due(self.every, last=True):
            return aux
        blocks = blocks_of(target.model)
        # Gamma(k / 2) is half of a chi-squared variable with k degrees of freedom: a sum of k squared normals.
        sizes = [int(2 * self.shape) + block.stop - block.start for block in blocks]
        parts = draws.normal(Purpose.NOISE, sum(sizes), use=1).split(sizes, dim=1)
        found = []
        for block, z in zip(blocks, parts, strict=True):
            squares = theta[:, block.start : block.stop].double().square().sum(-1)
            found.append(0.5 * z.square().sum(-1) / (self.rate + squares))
        return aux | {"gamma": torch.stack(found, dim=1).to(theta.dtype)}

    def add_gradient(self, target: Target, theta: Tensor, grad: Tensor, aux: dict[str, Tensor]) -> Tensor:
        """Add -2 gamma_b theta_b."""
        for b, block in enumerate(blocks_of(target.model)):
            place = slice(block.start, block.stop)
            grad[:, place].addcmul_(aux["gamma"][:, b, None], theta[:, place], value=-2.0)
        return grad
