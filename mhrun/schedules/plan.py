"""Schedules, and their combination into a plan."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.errors import Refusal, cut
from mhrun.ownership import is_bundled
from mhrun.parts import AUTO
from mhrun.schedules.contract import check_values
from mhrun.types import Controls

_CHUNK = 1 << 12  # steps whose temperatures are read at once
_STEPS = 64  # whose controls show those of all collected draws
OF_TARGET = math.nan  # a noise temperature equal to that of the target

Memory = dict[str, Tensor]
"""The state of a schedule, name -> (C, ...); saved in checkpoints."""


class Schedule(ABC):
    """Sets some of the controls at each step.

    Quantities are `step_size`, `temperature` and `noise_temperature`.
    """

    quantities: tuple[str, ...]

    @property
    def is_open(self) -> bool:
        """Whether its step size is ``auto``: a pilot finds it (`mhrun.engine.pilot`). Until then it is 1."""
        return False

    def filled(self, step_size: Tensor, acceptance: float | None) -> Schedule:
        """Return the schedule with the step sizes (C,) and the acceptance rate that a pilot found, if it is open."""
        return self

    @property
    def tuned_to(self) -> tuple[float, float] | None:
        """The range of acceptance rates that it tunes the step size to; None if it does not."""
        return None

    def collected(self) -> npt.NDArray[np.int64] | None:
        """Return the step numbers (from 1, increasing) whose draws are collected; None: all."""
        return None

    def cycle_of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the index of the cycle of each step; 0 for a schedule without cycles."""
        return np.zeros_like(steps)

    @abstractmethod
    def bind(self, warmup: int, steps: int) -> Schedule:
        """Return this schedule for a method with `warmup` steps of burn-in and `steps` steps after it.

        Raises:
            Refusal: the schedule does not fit these numbers of steps.
        """

    @abstractmethod
    def start(self, chains: int) -> Memory:
        """Return the initial memory."""

    @abstractmethod
    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return each quantity at the `steps` steps from `first_step` on, (K or 1, C or 1)."""

    @abstractmethod
    def steps_until_update(self, step: int) -> int | None:
        """Return the number of steps from `step` on with known values, before `learn` must be called; None: all."""

    @abstractmethod
    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Return the memory updated with acceptances (K, C)."""


class CollectedControls(NamedTuple):
    """Controls of chains at their collected steps."""

    step_size: Tensor  # (K, C), at some of them
    noise_temperature: npt.NDArray[np.float64]  # (C,), at the last
    temperature: npt.NDArray[np.float64]  # (C,), at the last


class Plan:
    """All schedules of a method.

    By default the temperature is 1 and the noise temperature is that of the target.

    Args:
        schedules: name -> schedule; names appear in messages only.
        chains: C.
        warmup: steps of burn-in, in which a schedule may adapt.
        steps: steps after burn-in.

    Raises:
        Refusal: a schedule that sets nothing, two for one quantity, none for the step size, two that choose the
            collected draws, or one that adapts after burn-in.
    """

    def __init__(self, schedules: Mapping[str, Schedule], chains: int, warmup: int, steps: int) -> None:
        self.schedules = {name: schedule.bind(warmup, steps) for name, schedule in schedules.items()}
        self.chains = chains
        self.total = warmup + steps
        self.warmup = warmup
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
            raise Refusal("a schedule must end its adaptation with burn-in.")
        offered = [(s, s.collected()) for s in self.schedules.values()]
        collecting = [(schedule, steps_of) for schedule, steps_of in offered if steps_of is not None]
        if len(collecting) > 1:
            raise Refusal("two schedules choose which draws are collected; keep one.")
        self.collected: npt.NDArray[np.int64] | None = None  # steps whose draws are collected; None: all
        self.lost_cycles = ""  # warning on cycles in burn-in; empty without any
        if collecting:
            schedule, steps_of = collecting[0]
            self.collected = steps_of[steps_of > warmup]
            cycles, cycles_left = (
                len(np.unique(schedule.cycle_of(steps))) for steps in (steps_of, self.collected)
            )
            if cycles_left < cycles and cycles > 1:
                lost = (
                    f"{cycles - cycles_left} of {cycles} cycles lie in the {warmup:,} steps of burn-in, whose draws do "
                    "not count"
                )
                if 2 * cycles_left <= cycles:
                    raise Refusal(f"{lost}; choose warmup=0.")
                self.lost_cycles = lost
            if not len(self.collected):
                raise Refusal("no draw after burn-in is collected; lower warmup.")
        self._check()

    @property
    def adapts(self) -> bool:
        """Whether a schedule adapts to acceptances."""
        return self.steps_until_update(1) is not None

    @property
    def is_open(self) -> bool:
        """Whether a pilot must find the step size."""
        return any(schedule.is_open for schedule in self.schedules.values())

    def filled(self, step_size: Tensor, acceptance: float | None) -> Plan:
        """Return the plan with the step sizes (C,) and the acceptance rate that a pilot found."""
        schedules = {name: s.filled(step_size, acceptance) for name, s in self.schedules.items()}
        return Plan(schedules, self.chains, self.warmup, self.total - self.warmup)

    @property
    def tuned_to(self) -> tuple[float, float] | None:
        """The range of acceptance rates that a schedule tunes the step size to in burn-in, or None."""
        return next((s.tuned_to for s in self.schedules.values() if s.tuned_to is not None), None)

    def kept(self, thin: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
        """Return the steps whose theta is stored: every `thin`-th, of the collected ones if a schedule chooses them.

        An integer k keeps every k-th step, and None keeps none.

        Raises:
            Refusal: `thin` and the schedule are incompatible.
        """
        if self.collected is None or thin is None:
            return thin
        if isinstance(thin, tuple):
            raise Refusal("a schedule says which draws are collected; give thin one number, or null.")
        if not 1 <= thin <= len(self.collected):
            count = len(self.collected)
            what = f"the {count} draws" if count > 1 else "the one draw"
            raise Refusal(
                f"thin = {thin} keeps none of {what} that a chain collects; give the method thin = 1."
            )
        return tuple(self.collected[thin - 1 :: thin].tolist())

    def _check(self) -> None:
        memory = self.start()
        for name, schedule in self.schedules.items():
            if not is_bundled(schedule):
                known = schedule.steps_until_update(1)
                steps = self.total if known is None else min(known, self.total)
                values = partial(schedule.values, _memory_of(memory, name))
                check_values(schedule, name, values, self.chains, steps)
            for quantity, value in schedule.values(_memory_of(memory, name), 1, 1).items():
                if value.shape[-1] not in (1, self.chains):
                    raise Refusal(
                        f"{quantity} has {value.shape[-1]} values for {self.chains} chains; give one, or one each."
                    )

    def lowest(self) -> tuple[float, float]:
        """Return the lowest temperature and the lowest noise temperature of all steps and chains."""
        memory, lowest = self.start(), (math.inf, math.inf)
        setting = {name: s for name, s in self.schedules.items() if set(s.quantities) != {"step_size"}}
        waits = [wait for s in setting.values() if (wait := s.steps_until_update(1)) is not None]
        known = min([self.total, *waits])  # of an adaptive schedule its first values
        for first in range(1, known + 1, _CHUNK) if setting else (1,):
            quantities: dict[str, Tensor] = {}
            for name, schedule in setting.items():
                count = min(_CHUNK, known - first + 1)
                quantities |= schedule.values(_memory_of(memory, name), first, count)
            found = [float(values.min()) for values in _temperatures(quantities)]
            lowest = min(lowest[0], found[0]), min(lowest[1], found[1])
        return lowest

    def start(self) -> Memory:
        """Return the initial memory of all schedules."""
        return {
            f"{name}.{key}": value
            for name, schedule in self.schedules.items()
            for key, value in schedule.start(self.chains).items()
        }

    def controls(self, memory: Memory, first_step: int, steps: int) -> Controls:
        """Return the controls at the `steps` steps from `first_step` on, each (K, C), float64."""
        quantities: dict[str, Tensor] = {}
        for name, schedule in self.schedules.items():
            quantities |= schedule.values(_memory_of(memory, name), first_step, steps)
        fields = (quantities["step_size"], *_temperatures(quantities))
        return Controls(*(v.expand(steps, self.chains).contiguous() for v in fields))

    @cached_property
    def collected_controls(self) -> CollectedControls:
        """Step sizes at some of the collected steps, and temperatures at the last of them."""
        memory = self.start()
        collected = self._counted_steps
        steps = collected[np.linspace(0, len(collected) - 1, min(len(collected), _STEPS)).astype(int)]
        controls = [self.controls(memory, int(step), 1) for step in steps]
        last = controls[-1]
        return CollectedControls(
            torch.stack([each.step_size[0] for each in controls]),
            last.noise_temperature[0].numpy(),
            last.temperature[0].numpy(),
        )

    @property
    def varies_step_size(self) -> bool:
        """Whether the step size of a chain differs between some of the collected steps."""
        sizes = self.collected_controls.step_size
        return bool((sizes != sizes[0]).any())

    @property
    def _counted_steps(self) -> npt.NDArray[np.int64]:
        """The steps whose draws count: all after burn-in, or those that a schedule collects."""
        return np.arange(self.warmup + 1, self.total + 1) if self.collected is None else self.collected

    @cached_property
    def varies_temperature(self) -> bool:
        """Whether the temperature of a chain differs between some of the collected steps."""
        return self._varies("temperature")

    @cached_property
    def varies_noise_temperature(self) -> bool:
        """Likewise of the noise temperature, which is that of the target where no schedule sets it."""
        return self._varies("temperature", "noise_temperature")

    def _varies(self, *names: str) -> bool:
        """Return whether the last of these temperatures differs between some of the collected steps."""
        owners = {name: s for name, s in self.schedules.items() if set(names) & set(s.quantities)}
        if not owners:
            return False
        memory, collected = self.start(), self._counted_steps
        before: Tensor | None = None
        for first in range(int(collected[0]), self.total + 1, _CHUNK):
            count = min(_CHUNK, self.total - first + 1)
            quantities: dict[str, Tensor] = {}
            for name, schedule in owners.items():
                quantities |= schedule.values(_memory_of(memory, name), first, count)
            values = _temperatures(quantities)[len(names) - 1]
            rows = collected[(collected >= first) & (collected < first + count)] - first
            if len(values) > 1:  # else one row for all steps
                values = values[torch.from_numpy(rows)]
            if before is not None:
                values = torch.cat((before, values))
            if len(values) and not torch.equal(values, values[:1].expand_as(values)):
                return True
            before = values[:1]
        return False

    def steps_until_update(self, step: int) -> int | None:
        """Return the number of steps from `step` on with known controls; None: all."""
        waits = [h for s in self.schedules.values() if (h := s.steps_until_update(step)) is not None]
        return min(waits, default=None)

    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Return the memory of all schedules updated with acceptances (K, C)."""
        new: Memory = {}
        for name, schedule in self.schedules.items():
            for key, value in schedule.learn(_memory_of(memory, name), first_step, accepted).items():
                new[f"{name}.{key}"] = value
        return new


def numbers(name: str, value: float | list[float], *, other: str = "") -> Tensor:
    """Return one number, or one for each chain, as (1 or C,) float64; `other` is a word that is taken, for messages.

    Raises:
        Refusal: an empty list, or a value that is no finite number.
    """
    for number in value if isinstance(value, list | tuple) else [value]:
        if isinstance(number, bool):
            raise Refusal(f"{name} = {number} must be a number, not true or false.")
    try:
        tensor = torch.atleast_1d(torch.as_tensor(value, dtype=torch.float64))
    except (TypeError, ValueError, RuntimeError) as error:
        choices = f"a number, one for each chain, or {other}" if other else "a number, or one for each chain"
        raise Refusal(f"{name} = {cut(repr(value), 80)} must be {choices}.") from error
    if not bool(tensor.isfinite().all()):
        raise Refusal(f"{name} = {float(tensor[~tensor.isfinite()][0]):g} must be a finite number.")
    if tensor.numel() == 0:
        raise Refusal(f"{name} = [] has no value; give a number, or one for each chain.")
    return tensor


def is_auto(value: Any) -> bool:
    """Return whether a setting is left to a pilot."""
    return isinstance(value, str) and value == AUTO


def _temperatures(quantities: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the temperature and the noise temperature (K, 1 or C) that schedules set."""
    temperature = quantities.get("temperature", torch.ones(1, 1, dtype=torch.float64))
    noise = quantities.get("noise_temperature", temperature)
    return temperature, torch.where(noise.isnan(), temperature, noise)


def _memory_of(memory: Memory, name: str) -> Memory:
    prefix = f"{name}."
    return {key[len(prefix) :]: value for key, value in memory.items() if key.startswith(prefix)}


class Stateless(Schedule):
    """A schedule that is a function of the step, without state or adaptation."""

    def bind(self, warmup: int, steps: int) -> Self:
        """Return itself."""
        return self

    def start(self, chains: int) -> Memory:
        """Remember nothing."""
        return {}

    def steps_until_update(self, step: int) -> int | None:
        """Return None: all values are known in advance."""
        return None

    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Learn nothing."""
        return memory


_GRID = 1024


def on_grid(values: Callable[[Tensor], Tensor], first_step: int, steps: int) -> Tensor:
    """Return ``values(t)`` (K,) for t = first_step - 1, ..., bit-identical for any division into blocks of steps.

    The rounding of vectorised functions depends on the position in the array, so they are evaluated on a fixed grid.
    """
    start = (first_step - 1) // _GRID * _GRID
    stop = -(-(first_step - 1 + steps) // _GRID) * _GRID
    parts = [values(torch.arange(t, t + _GRID, dtype=torch.float64)) for t in range(start, stop, _GRID)]
    return torch.cat(parts)[first_step - 1 - start :][:steps]
