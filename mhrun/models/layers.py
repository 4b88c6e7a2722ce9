"""Layers of the networks for images: normalised inputs, and normalisations by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mhrun.errors import Refusal, check_choice

# Means and standard deviations of the channels, as in the code of Zhang et al. (2020).
CHANNELS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
}
NORMS = ("none", "batch", "group", "frn")


class Normalise(nn.Module):
    """(x - mean) / sd of each channel."""

    def __init__(self, name: str) -> None:
        super().__init__()
        mean, sd = (torch.tensor(values)[:, None, None] for values in CHANNELS[name])
        self.register_buffer("mean", mean)
        self.register_buffer("sd", sd)
        self.eval()  # constants

    def forward(self, x: Tensor) -> Tensor:
        """(m, channels, s, s) -> the same."""
        return (x - self.get_buffer("mean")) / self.get_buffer("sd")


class FRN(nn.Module):
    """Filter response normalisation, max(gamma x / sqrt(mean x^2 + 1e-6) + beta, tau) (Singh & Krishnan 2020).

    The mean is over the pixels of a channel of one image, so that a datum's likelihood is its own. The maximum with the
    threshold tau stands in the place of ReLU.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("gamma", "beta", "tau"):
            self.register_parameter(name, nn.Parameter(torch.empty(channels, 1, 1)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set gamma to 1, beta and tau to 0."""
        with torch.no_grad():
            self.get_parameter("gamma").fill_(1.0)
            self.get_parameter("beta").fill_(0.0)
            self.get_parameter("tau").fill_(0.0)

    def forward(self, x: Tensor) -> Tensor:
        """(m, channels, s, s) -> the same."""
        gamma, beta, tau = (self.get_parameter(name) for name in ("gamma", "beta", "tau"))
        scaled = x * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + 1e-6)
        return torch.maximum(gamma * scaled + beta, tau)


def norm_of(name: str, channels: int) -> nn.Module:
    """Return a normalisation of channels: ``none``, ``batch``, ``group`` (groups of 4 channels or more) or ``frn``.

    Raises:
        Refusal: an unknown name.
    """
    check_choice("norm", name, NORMS)
    if name == "none":
        return nn.Identity()
    if name == "batch":
        return nn.BatchNorm2d(channels)
    if name == "group":
        groups = [g for g in (1, 2, 4, 8) if g == 1 or (channels % g == 0 and channels >= 4 * g)]
        return nn.GroupNorm(max(groups), channels)
    return FRN(channels)


def inputs_of(name: str | None) -> nn.Module:
    """Return the layer that normalises the channels of images; None: pixels are left as they are.

    Raises:
        Refusal: an unknown name.
    """
    if name is None:
        return nn.Identity()
    if name not in CHANNELS:
        raise Refusal(f"normalise = {name!r} is unknown; choose {', '.join(CHANNELS)} or null.")
    return Normalise(name)


def activation_of(norm: str) -> nn.Module:
    """Return ReLU, or nothing after FRN, which includes a threshold."""
    return nn.Identity() if norm == "frn" else nn.ReLU()
