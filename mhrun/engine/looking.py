"""Looks at the chains while they run, and what is told of the stretch between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhrun.errors import UserError
from mhrun.evaluation import Evaluation
from mhrun.store.blocks import Array
from mhrun.target import Target
from mhrun.types import Controls, Record, State

_TALLIED = ("accepted", "diverging")


class Looking:
    """An evaluation at work: knows when it is due, and keeps what it remembers.

    Beside what the evaluation tells of each chain, a look tells the rate of acceptance and of steps that were not
    finite since the look before, the step size, and each number per chain that the kernel keeps.

    Args:
        evaluation: what looks.
        target: what the chains are after.
        chains: C.
    """

    def __init__(self, evaluation: Evaluation, target: Target, chains: int) -> None:
        self._evaluation = evaluation
        self._target = target
        self._memory = evaluation.start(target, chains)
        self._tally = {name: torch.zeros(chains, dtype=torch.float64) for name in _TALLIED}
        self._since = 0

    def horizon(self, step: int) -> int:
        """Return the steps from `step` on that may be done before the next look."""
        return self._evaluation.horizon(step)

    @torch.no_grad()
    def after(
        self, step: int, steps: int, due: bool, state: State, record: Record, controls: Controls
    ) -> dict[str, Array] | None:
        """Take in the last `steps` steps, and look if it is `due`; return what is told, name -> (C,)."""
        for name in _TALLIED:
            self._tally[name] += torch.from_numpy(record[name].sum(axis=1, dtype=np.float64))
        self._since += steps
        if not due:
            return None
        self._memory, told = self._evaluation.look(
            self._target, self._memory, step, state.evaluation.theta, state.aux.get("valid")
        )
        if not self._evaluation.tells(step):
            return None
        row = {name: value.double().cpu().numpy() for name, value in told.items()}
        row |= {f"{name}_rate": (self._tally[name] / self._since).numpy() for name in _TALLIED}
        row["step_size"] = controls.step_size[-1].numpy()
        row |= {
            name: value.double().cpu().numpy()
            for name, value in state.aux.items()
            if value.dim() == 1 and value.is_floating_point()
        }
        self._tally = {name: torch.zeros_like(value) for name, value in self._tally.items()}
        self._since = 0
        return row

    def pack(self) -> dict[str, Any]:
        """Return what it remembers, as arrays."""
        since = torch.tensor(self._since)
        named = self._memory | {f"tally/{k}": v for k, v in self._tally.items()} | {"since": since}
        return {f"look/{name}": value.cpu().numpy() for name, value in named.items()}

    def unpack(self, arrays: Mapping[str, Any]) -> None:
        """Remember what `pack` returned."""
        found: dict[str, Tensor] = {
            name[5:]: torch.from_numpy(value) for name, value in arrays.items() if name.startswith("look/")
        }
        self._since = int(found.pop("since"))
        self._tally = {name: found.pop(f"tally/{name}") for name in _TALLIED}
        if set(found) != set(self._memory):
            raise UserError(
                "This run was begun by another version, whose looks at the chains remembered something else; begin it "
                "anew with runtime.force=true."
            )
        self._memory = {name: value.to(self._target.device) for name, value in found.items()}
