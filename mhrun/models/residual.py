"""Residual networks (He et al. 2016), in the form of the code of Zhang et al. (2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from mhrun.errors import Refusal
from mhrun.models.layers import activation_of, inputs_of, norm_of
from mhrun.models.module import ModuleModel


class ResidualBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)); the shortcut is a 1 x 1 convolution where shapes change."""

    def __init__(self, channels: int, to: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, to, 3, stride, 1, bias=False)
        self.norm1, self.act1 = norm_of(norm, to), activation_of(norm)
        self.conv2 = nn.Conv2d(to, to, 3, 1, 1, bias=False)
        self.norm2 = norm_of(norm, to)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != to:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, to, 1, stride, bias=False), norm_of(norm, to))
        self.act2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(m, channels, s, s) -> (m, to, s / stride, s / stride)."""
        inner = self.act1(self.norm1(self.conv1(x)))
        outputs: Tensor = self.act2(self.norm2(self.conv2(inner)) + self.shortcut(x))
        return outputs


class Residual(ModuleModel):
    """A residual network for classes of images: convolution, stages of blocks, mean over pixels, linear layer.

    Each block has two 3 x 3 convolutions without biases. The first block of each stage but the first halves the sides.
    ResNet-18 is ``blocks=[2, 2, 2, 2]``, ``widths=[64, 128, 256, 512]`` (11,173,962 parameters with ten classes);
    ResNet-20 is ``blocks=[3, 3, 3]``, ``widths=[16, 32, 64]``; ResNet-8 has one block in each stage.

    Args:
        blocks: blocks of each stage.
        widths: channels of each stage.
        norm: ``batch``, whose running statistics belong to each chain, ``group``, ``frn`` or ``none``.
        classes: K.
        channels: of the images.
        normalise: ``cifar10`` or ``cifar100``: the means and standard deviations of the channels; None: x in [0, 1].
        prior_variance: prior variance of every parameter, N(0, variance); flat if None.
        evaluation: see `mhrun.models.module.ModuleModel`.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        blocks: Sequence[int] = (2, 2, 2, 2),
        widths: Sequence[int] = (64, 128, 256, 512),
        norm: Literal["none", "batch", "group", "frn"] = "batch",
        classes: int = 10,
        channels: int = 3,
        normalise: Literal["cifar10", "cifar100"] | None = "cifar10",
        prior_variance: float | None = None,
        evaluation: Literal["auto", "bound", "vmapped"] = "auto",
    ) -> None:
        if len(blocks) != len(widths) or not blocks or min(*blocks, *widths, classes, channels) < 1:
            raise Refusal("Residual needs as many widths as stages of blocks, and counts of at least 1.")
        layers: list[nn.Module] = [inputs_of(normalise), nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)]
        layers += [norm_of(norm, widths[0]), activation_of(norm)]
        width_in = widths[0]
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            for i in range(count):
                layers.append(ResidualBlock(width_in, width, 2 if stage and not i else 1, norm))
                width_in = width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, classes)]
        super().__init__(nn.Sequential(*layers), "categorical", prior_variance, evaluation)
