"""Schedules side by side, each for its own quantities."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.types import Controls

OF_TARGET = math.nan  # a noise temperature that is the target's

Memory = dict[str, Tensor]
"""The state of a schedule, name -> (C, ...); saved in checkpoints."""


class Schedule(ABC):
    """Sets some of the controls at each step.

    Quantities are `step_size`, `temperature` and `noise_temperature`.
    """

    quantities: tuple[str, ...]

    def collected(self) -> npt.NDArray[np.int64] | None:
        """Return the steps whose draws are collected, increasing, 1 being the first; None: of all."""
        return None

    def cycle_of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of the cycle that each step is in; one cycle for all where there are none."""
        return np.zeros_like(steps)

    @abstractmethod
    def bind(self, warmup: int, steps: int) -> Schedule:
        """Return this schedule for a method with so many steps of burn-in and so many after it.

        Raises:
            Refusal: it has no meaning there.
        """

    @abstractmethod
    def start(self, chains: int) -> Memory:
        """Return the first memory."""

    @abstractmethod
    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return each quantity at some steps, (K or 1, C or 1)."""

    @abstractmethod
    def steps_until_update(self, step: int) -> int | None:
        """Return how many steps from `step` on are known before `learn` must be called; None: all."""

    @abstractmethod
    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Learn from acceptances (K, C) and return the new memory."""


class Plan:
    """All schedules of a method.

    Where nothing else is said the temperature is 1, and noise has the temperature of the target.

    Args:
        schedules: name -> schedule; the names are for people.
        chains: C.
        warmup: steps of burn-in, in which a schedule may adapt.
        steps: steps after it.

    Raises:
        Refusal: a schedule that sets nothing, two for one quantity, none for the step size, two that say what is
            collected, or one that adapts after burn-in.
    """

    def __init__(self, schedules: Mapping[str, Schedule], chains: int, warmup: int, steps: int) -> None:
        self.schedules = {name: schedule.bind(warmup, steps) for name, schedule in schedules.items()}
        self.chains = chains
        self.total = warmup + steps
        owner: dict[str, str] = {}
        for name, schedule in self.schedules.items():
            if not schedule.quantities:
                raise Refusal(f"schedule '{name}' sets nothing; give it a step_size or a temperature.")
            for quantity in schedule.quantities:
                if quantity in owner:
                    raise Refusal(
                        f"schedules '{owner[quantity]}' and '{name}' both set {quantity}; keep one."
                    )
                owner[quantity] = name
        if "step_size" not in owner:
            raise Refusal("no schedule sets step_size; add one that does.")
        if self.steps_until_update(warmup + 1) is not None:
            raise Refusal("a schedule that adapts must be done with it at the end of burn-in.")
        offered = [(s, s.collected()) for s in self.schedules.values()]
        collecting = [(schedule, steps_of) for schedule, steps_of in offered if steps_of is not None]
        if len(collecting) > 1:
            raise Refusal("two schedules say which draws are collected; keep one.")
        self.collected: npt.NDArray[np.int64] | None = None  # steps whose draws are collected; None: of all
        if collecting:
            schedule, steps_of = collecting[0]
            self.collected = steps_of[steps_of > warmup]
            cycles, left = (len(np.unique(schedule.cycle_of(steps))) for steps in (steps_of, self.collected))
            if left < cycles and cycles > 1:
                raise Refusal(
                    f"{cycles - left} of {cycles} cycles lie in the {warmup} steps of burn-in, whose draws do not "
                    "count; say warmup=0."
                )
            if not len(self.collected):
                raise Refusal("no draw after burn-in is collected; lower warmup.")
        self._check()

    @property
    def adapts(self) -> bool:
        """Whether a schedule learns from acceptances."""
        return self.steps_until_update(1) is not None

    def kept(self, thin: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        """Return which steps leave their theta: as `thin` says, of those that a schedule collects if one does.

        Raises:
            Refusal: the two do not go together.
        """
        if self.collected is None or thin is None:
            return thin
        if isinstance(thin, tuple):
            raise Refusal("a schedule says which draws are collected; give thin one number, or null.")
        if not 1 <= thin <= len(self.collected):
            raise Refusal(f"thin = {thin} keeps none of {len(self.collected)} draws that are collected.")
        return tuple(self.collected[thin - 1 :: thin].tolist())

    def _check(self) -> None:
        memory = self.start()
        for name, schedule in self.schedules.items():
            for quantity, value in schedule.values(_own(memory, name), 1, 1).items():
                if value.shape[-1] not in (1, self.chains):
                    raise Refusal(
                        f"{quantity} has {value.shape[-1]} values for {self.chains} chains; give one, or one each."
                    )

    def cools(self) -> bool:
        """Say whether the noise is at temperature 0 at the first or the last step, where those that cool it do."""
        memory = self.start()
        return any(
            bool((self.controls(memory, step, 1).noise_temperature == 0).any()) for step in (1, self.total)
        )

    def start(self) -> Memory:
        """Return the first memory of all schedules."""
        return {
            f"{name}.{key}": value
            for name, schedule in self.schedules.items()
            for key, value in schedule.start(self.chains).items()
        }

    def controls(self, memory: Memory, first_step: int, steps: int) -> Controls:
        """Return the controls of some steps, each (K, C), float64."""
        quantities: dict[str, Tensor] = {}
        for name, schedule in self.schedules.items():
            quantities |= schedule.values(_own(memory, name), first_step, steps)
        temperature = quantities.get("temperature", torch.ones(1, 1, dtype=torch.float64))
        noise = quantities.get("noise_temperature", temperature)
        noise = torch.where(noise.isnan(), temperature, noise)
        values = (quantities["step_size"], temperature, noise)
        return Controls(*(v.expand(steps, self.chains).contiguous() for v in values))

    def steps_until_update(self, step: int) -> int | None:
        """Return how many steps from `step` on the controls are known; None: all."""
        waits = [h for s in self.schedules.values() if (h := s.steps_until_update(step)) is not None]
        return min(waits, default=None)

    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Let every schedule take in what happened, accepted (K, C)."""
        new: Memory = {}
        for name, schedule in self.schedules.items():
            for key, value in schedule.learn(_own(memory, name), first_step, accepted).items():
                new[f"{name}.{key}"] = value
        return new


def numbers(name: str, value: float | list[float]) -> Tensor:
    """Return one number, or one for each chain, as (1 or C,) float64.

    Raises:
        Refusal: there is none.
    """
    found = torch.atleast_1d(torch.as_tensor(value, dtype=torch.float64))
    if found.numel() == 0:
        raise Refusal(f"{name} = [] has no value; give a number, or one for each chain.")
    return found


def _own(memory: Memory, name: str) -> Memory:
    prefix = f"{name}."
    return {key[len(prefix) :]: value for key, value in memory.items() if key.startswith(prefix)}


class Stateless(Schedule):
    """A schedule that depends on the step alone: it has no state and learns nothing."""

    quantities: tuple[str, ...]

    def bind(self, warmup: int, steps: int) -> Self:
        """Return itself."""
        return self

    def start(self, chains: int) -> Memory:
        """Remember nothing."""
        return {}

    def steps_until_update(self, step: int) -> int | None:
        """Know every step beforehand."""
        return None

    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Learn nothing."""
        return memory


_GRID = 1024


def on_grid(values: Callable[[Tensor], Tensor], first_step: int, steps: int) -> Tensor:
    """Return ``values(t)`` (K,) for t = first_step - 1, ..., the same to the bit however steps are cut.

    Vectorised functions round by where a number stands in an array; so they are evaluated on a fixed grid.
    """
    start = (first_step - 1) // _GRID * _GRID
    stop = -(-(first_step - 1 + steps) // _GRID) * _GRID
    parts = [values(torch.arange(t, t + _GRID, dtype=torch.float64)) for t in range(start, stop, _GRID)]
    return torch.cat(parts)[first_step - 1 - start :][:steps]
