"""Convolutional networks for small images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from mhrun.errors import Refusal
from mhrun.models.layers import activation_of, inputs_of, norm_of
from mhrun.models.module import ModuleModel
from mhrun.random import Draws, Purpose


class Convolutional(ModuleModel):
    """Stages of convolution, ReLU and pooling over 2 x 2 pixels, then linear layers.

    With the defaults 4,050,698 parameters on images of 32 x 32: a reading of the "three-layer CNN" with about four
    million weights of Wu, Wang & Wong (2020, section 3.2), whose architecture is in a supplement that is not public.

    Args:
        widths: channels of each 3 x 3 convolution.
        dense: units of the hidden linear layer; 0 for none.
        norm: ``none``, ``group``, ``frn`` or ``batch``.
        side: pixels of a side of the images.
        classes: K.
        channels: of the images.
        normalise: ``cifar10`` or ``cifar100``: the means and standard deviations of the channels; None: x in [0, 1].
        weight_sd: all parameters start from N(0, weight_sd^2); None: as torch's layers draw them.
        prior_variance: prior variance of every parameter, N(0, variance); flat if None.
        evaluation: see `mhrun.models.module.ModuleModel`.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        widths: Sequence[int] = (64, 128, 256),
        dense: int = 896,
        norm: Literal["none", "batch", "group", "frn"] = "none",
        side: int = 32,
        classes: int = 10,
        channels: int = 3,
        normalise: Literal["cifar10", "cifar100"] | None = "cifar10",
        weight_sd: float | None = None,
        prior_variance: float | None = None,
        evaluation: Literal["auto", "bound", "vmapped"] = "auto",
    ) -> None:
        if not widths or min(*widths, classes, channels) < 1 or dense < 0:
            raise Refusal(
                "Convolutional needs widths, classes and channels of at least 1, and dense of at least 0."
            )
        if side % 2 ** len(widths):
            raise Refusal(f"side = {side} cannot be halved {len(widths)} times; choose fewer widths.")
        if weight_sd is not None and weight_sd <= 0:
            raise Refusal(f"weight_sd = {weight_sd:g} must be positive, or null.")
        layers, width_in = [inputs_of(normalise)], channels
        for width in widths:
            layers += [nn.Conv2d(width_in, width, 3, padding=1), norm_of(norm, width), activation_of(norm)]
            layers.append(nn.MaxPool2d(2))
            width_in = width
        units = width_in * (side // 2 ** len(widths)) ** 2
        layers.append(nn.Flatten())
        if dense:
            layers += [nn.Linear(units, dense), nn.ReLU()]
        layers.append(nn.Linear(dense or units, classes))
        self.weight_sd = weight_sd
        super().__init__(nn.Sequential(*layers), "categorical", prior_variance, evaluation)

    def init(self, chains: int, draws: Draws) -> Tensor:
        """Return initial parameters (C, D)."""
        if self.weight_sd is None:
            return super().init(chains, draws)
        return self.weight_sd * draws.normal(Purpose.INIT, self.dim, dtype=torch.float32)
