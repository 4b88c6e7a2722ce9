"""The position of a method's run, in memory and in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.engine.first_steps import check_first_steps
from mhrun.engine.method import Method
from mhrun.engine.monitoring import Monitoring
from mhrun.schedules.plan import Memory
from mhrun.store.blocks import Checkpoint
from mhrun.types import Evaluation, State


@dataclass(frozen=True)
class Position:
    """Where a method is."""

    step: int  # the steps that are done
    state: State  # after them
    memory: Memory  # of the plan
    monitoring: Monitoring | None

    def checkpoint(self) -> Checkpoint:
        """Return what a resumed run needs to continue from here."""
        monitor_arrays = {} if self.monitoring is None else self.monitoring.pack()
        return Checkpoint(self.step, _pack(self.state, self.memory) | monitor_arrays)


def position_after(method: Method, checkpoint: Checkpoint | None) -> Position:
    """Return the position after a checkpoint, or the first one.

    Raises:
        Refusal: a part that is not of this package breaks its contract, see `check_first_steps`.
    """
    monitoring = None
    if method.monitor is not None:
        monitoring = Monitoring(method.monitor, method.target, method.shape.chains)
    if checkpoint is None:
        state = method.first_state()
        check_first_steps(method, state)
        return Position(0, state, method.plan.start(), monitoring)
    if monitoring is not None:
        monitoring.unpack(checkpoint.arrays)
    return Position(checkpoint.step, *_unpack(checkpoint.arrays, method), monitoring)


def _pack(state: State, memory: Memory) -> dict[str, np.ndarray[Any, Any]]:
    tensors = {f"evaluation/{k}": v for k, v in state.evaluation._asdict().items() if isinstance(v, Tensor)}
    tensors |= {f"aux/{k}": v for k, v in state.aux.items()} | {f"memory/{k}": v for k, v in memory.items()}
    return {name: value.cpu().numpy() for name, value in tensors.items()}


def _unpack(arrays: Mapping[str, np.ndarray[Any, Any]], method: Method) -> tuple[State, Memory]:
    def part(prefix: str, device: torch.device | str) -> dict[str, Tensor]:
        start = len(prefix) + 1
        return {
            name[start:]: torch.from_numpy(value).to(device)
            for name, value in arrays.items()
            if name.startswith(prefix + "/")
        }

    device = method.target.device
    state = State(Evaluation.of(part("evaluation", device)), part("aux", device))
    return state, part("memory", "cpu")
