"""Schedules side by side, each for its own quantities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.types import Controls

Memory = dict[str, Tensor]
"""What a schedule remembers between steps, name -> (C, ...); saved with the state."""


class Schedule(Protocol):
    """Says what some of the controls are.

    Quantities are `step_size`, `temperature` and `noise_temperature`.
    """

    quantities: tuple[str, ...]

    def start(self, chains: int) -> Memory:
        """Return the first memory."""
        ...

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return each quantity at some steps, (K or 1, C or 1)."""
        ...

    def horizon(self, step: int) -> int | None:
        """Return how many steps from `step` on `values` can tell before `learn` must be called; None: all."""
        ...

    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Take in what happened, accepted (K, C), up to the horizon, and return the new memory."""
        ...


class Plan:
    """All schedules of a method.

    Where nothing else is said the temperature is 1, and noise has the temperature of the target.

    Args:
        schedules: name -> schedule; the names are for people.
        chains: C.

    Raises:
        Refusal: two schedules for one quantity, or none for the step size.
    """

    def __init__(self, schedules: Mapping[str, Schedule], chains: int) -> None:
        self.schedules = dict(schedules)
        self.chains = chains
        owner: dict[str, str] = {}
        for name, schedule in self.schedules.items():
            for quantity in schedule.quantities:
                if quantity in owner:
                    raise Refusal(
                        f"schedules '{owner[quantity]}' and '{name}' both set {quantity}; keep one."
                    )
                owner[quantity] = name
        if "step_size" not in owner:
            raise Refusal("no schedule sets step_size; add one, such as schedule=fixed.")

    def start(self) -> Memory:
        """Return the first memory of all schedules."""
        return {
            f"{name}.{key}": value
            for name, schedule in self.schedules.items()
            for key, value in schedule.start(self.chains).items()
        }

    def controls(self, memory: Memory, first_step: int, steps: int) -> Controls:
        """Return the controls of some steps, each (K, C), float64."""
        said: dict[str, Tensor] = {}
        for name, schedule in self.schedules.items():
            said |= schedule.values(_own(memory, name), first_step, steps)
        temperature = said.get("temperature", torch.ones(1, 1, dtype=torch.float64))
        values = (said["step_size"], temperature, said.get("noise_temperature", temperature))
        return Controls(*(v.expand(steps, self.chains).contiguous() for v in values))

    def horizon(self, step: int) -> int | None:
        """Return how many steps from `step` on the controls are known; None: all."""
        said = [h for s in self.schedules.values() if (h := s.horizon(step)) is not None]
        return min(said, default=None)

    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Let every schedule take in what happened, accepted (K, C)."""
        new: Memory = {}
        for name, schedule in self.schedules.items():
            for key, value in schedule.learn(_own(memory, name), first_step, accepted).items():
                new[f"{name}.{key}"] = value
        return new


def _own(memory: Memory, name: str) -> Memory:
    prefix = f"{name}."
    return {key[len(prefix) :]: value for key, value in memory.items() if key.startswith(prefix)}


class Blind:
    """A schedule that looks at nothing but the step: no memory, no horizon."""

    quantities: tuple[str, ...]

    def start(self, chains: int) -> Memory:
        """Remember nothing."""
        return {}

    def horizon(self, step: int) -> int | None:
        """Know every step beforehand."""
        return None

    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Learn nothing."""
        return memory
