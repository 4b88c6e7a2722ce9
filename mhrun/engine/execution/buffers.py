"""Preallocated buffers for the statistics of a block of steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mhrun.types import INFO_DEFAULTS, INFO_DTYPES, Info, Record


def info_buffers(steps: int, chains: int, device: torch.device) -> dict[str, Tensor]:
    """Return a buffer (K, C) for each field of `Info`, filled with its default."""
    return {
        name: torch.full(
            (steps, chains), INFO_DEFAULTS.get(name, 0), dtype=getattr(torch, dtype), device=device
        )
        for name, dtype in INFO_DTYPES.items()
    }


def filled(infos: Sequence[Info], buffers: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the buffers (K, C) with the statistics of all steps of a block.

    They are written at once: a copy of each field per step would take a fifth of the time of a small step.
    """
    for name, values in zip(Info._fields, zip(*infos, strict=True), strict=True):
        if all(value is not None for value in values):
            buffers[name].copy_(torch.stack(values))
        else:
            for row, value in enumerate(values):
                if value is not None:
                    buffers[name][row] = value
    return buffers


def write(info: Info, buffers: dict[str, Tensor], row: int) -> None:
    """Write the statistics of a step into a row of the buffers, without device synchronisation."""
    for name, value in zip(info._fields, info, strict=True):
        if value is not None:
            buffers[name][row] = value


def record_of(theta: Tensor, buffers: dict[str, Tensor]) -> Record:
    """Return the record of a block of steps: theta (draws, C, D) and the buffers (K, C), each (C, ...) on the host."""
    fields = {"theta": theta.double(), **buffers}
    return {name: value.transpose(0, 1).contiguous().cpu().numpy() for name, value in fields.items()}
