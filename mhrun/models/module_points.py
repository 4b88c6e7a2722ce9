"""Points of a module: its parameters, and after them the buffers that are part of a chain's state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mhrun.models.module_copy import Buffer


def flat_parameters(module: nn.Module) -> Tensor:
    """Return the parameters of a module (D,), in the order of `named_parameters`."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def initial_buffers(buffers: Sequence[Buffer], theta: Tensor) -> dict[str, Tensor]:
    """Return the initial buffers of each chain of theta (C, D), name -> (C, ...); floating ones as theta."""
    return {
        name: (value.to(theta) if value.is_floating_point() else value.to(theta.device))
        .expand(len(theta), *value.shape)
        .contiguous()
        for name, value in buffers
    }


def split_points(buffers: Sequence[Buffer], dim: int, points: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return theta (C, D) and the buffers of points (C, D) or (C, width), the initial ones at (C, D)."""
    if not buffers:
        return points, {}
    if points.shape[1] == dim:
        return points, initial_buffers(buffers, points)
    theta, *parts = points.split([dim, *(buffer.value.numel() for buffer in buffers)], 1)
    by_name = {}
    for buffer, part in zip(buffers, parts, strict=True):
        value = part.reshape(len(points), *buffer.value.shape)
        is_integer = not buffer.value.is_floating_point()
        by_name[buffer.name] = value.round().to(buffer.value.dtype) if is_integer else value
    return theta, by_name
