"""Runs a monitor during a run, with acceptance and divergence rates since its last metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.array_types import Array
from mhrun.errors import UserError
from mhrun.monitors import Monitor
from mhrun.target import Target
from mhrun.types import BUFFER, Controls, Record, State

_TALLIED = ("accepted", "diverging")


class Monitoring:
    """A monitor in a run: tracks when it is due and holds its state.

    Each row has the monitor's metrics of each chain, the rates of acceptance and of non-finite steps since the previous
    row, the step size, and each number per chain in the kernel's state.

    Args:
        monitor: the monitor.
        target: of the chains.
        chains: C.
    """

    def __init__(self, monitor: Monitor, target: Target, chains: int) -> None:
        self._monitor = monitor
        self._target = target
        self._memory = monitor.start(target, chains)
        self._tally = {name: torch.zeros(chains, dtype=torch.float64) for name in _TALLIED}
        self._since = 0

    def steps_until_due(self, step: int) -> int:
        """Return the number of steps from `step` on until the monitor is due."""
        return self._monitor.steps_until_due(step)

    @torch.no_grad()
    def after(
        self, step: int, steps: int, due: bool, state: State, record: Record, controls: Controls
    ) -> dict[str, Array] | None:
        """Record the last `steps` steps and, if `due`, run the monitor; return a row of metrics, name -> (C,).

        None if the monitor is not due, or has no row at this step.
        """
        for name in _TALLIED:
            self._tally[name] += torch.from_numpy(record[name].sum(axis=1, dtype=np.float64))
        self._since += steps
        if not due:
            return None
        self._memory, metrics = self._monitor.observe(
            self._target, self._memory, step, self._target.points(state), _valid(state)
        )
        if not self._monitor.emits(step):
            return None
        row = {name: value.double().cpu().numpy() for name, value in metrics.items()}
        row |= {f"{name}_rate": (self._tally[name] / self._since).numpy() for name in _TALLIED}
        row["step_size"] = controls.step_size[-1].numpy()
        row |= {
            name: value.double().cpu().numpy()
            for name, value in state.aux.items()
            if value.dim() == 1 and value.is_floating_point() and not name.startswith(BUFFER)
        }
        self._tally = {name: torch.zeros_like(value) for name, value in self._tally.items()}
        self._since = 0
        return row

    def pack(self) -> dict[str, Any]:
        """Return its state as arrays."""
        since = torch.tensor(self._since)
        tensors = self._memory | {f"tally/{k}": v for k, v in self._tally.items()} | {"since": since}
        return {f"monitor/{name}": value.cpu().numpy() for name, value in tensors.items()}

    def unpack(self, arrays: Mapping[str, Any]) -> None:
        """Restore what `pack` returned.

        Raises:
            UserError: the state is one of another version.
        """
        tensors: dict[str, Tensor] = {
            name.removeprefix("monitor/"): torch.from_numpy(value)
            for name, value in arrays.items()
            if name.startswith("monitor/")
        }
        if set(tensors) != {"since", *(f"tally/{name}" for name in _TALLIED), *self._memory}:
            raise UserError(
                "This run was begun by another version, whose monitor had another state; begin it "
                "anew with runtime.force=true."
            )
        self._since = int(tensors.pop("since"))
        self._tally = {name: tensors.pop(f"tally/{name}") for name in _TALLIED}
        self._memory = {name: value.to(self._target.device) for name, value in tensors.items()}


def _valid(state: State) -> Tensor | None:
    """Return which chains are at a draw of the target (C,): none that has stopped; None: all."""
    valid, stopped = state.aux.get("valid"), state.aux.get("stopped")
    if stopped is None:
        return valid
    return ~stopped if valid is None else valid & ~stopped
