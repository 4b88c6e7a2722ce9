"""Constants."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.parts import AUTO
from mhrun.schedules.plan import Memory, Stateless, is_auto, numbers


class Fixed(Stateless):
    """Each given quantity is constant: one value for all chains, or one per chain.

    A step size may be "auto": a pilot finds it.

    Raises:
        Refusal: a step size that is not positive, or a negative temperature.
    """

    def __init__(
        self,
        step_size: float | list[float] | str | None = None,
        temperature: float | list[float] | None = None,
        noise_temperature: float | list[float] | None = None,
    ) -> None:
        self._open = is_auto(step_size)
        step_size = 1.0 if self._open else step_size
        settings: dict[str, Any] = {
            "step_size": step_size,
            "temperature": temperature,
            "noise_temperature": noise_temperature,
        }
        self._values = {
            name: numbers(name, value, other=AUTO if name == "step_size" else "")[None]
            for name, value in settings.items()
            if value is not None
        }
        self.quantities = tuple(self._values)
        for name, value in self._values.items():
            lowest = float(value.min())
            if not (lowest >= 0 if name == "noise_temperature" else lowest > 0):
                raise Refusal(
                    f"{name} = {lowest:g} must be {'at least 0' if 'noise' in name else 'positive'}."
                )

    @property
    def is_open(self) -> bool:
        """Whether a pilot finds the step size."""
        return self._open

    def filled(self, step_size: Tensor, acceptance: float | None) -> Fixed:
        """Return the schedule with these step sizes (C,)."""
        if not self._open:
            return self
        schedule = copy.copy(self)
        schedule._open = False
        schedule._values = self._values | {"step_size": step_size.double()[None]}
        return schedule

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return the constants, (1, 1 or C)."""
        return self._values
