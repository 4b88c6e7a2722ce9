"""Constants."""

from __future__ import annotations

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.schedules.plan import Memory, Stateless, numbers


class Fixed(Stateless):
    """Each given quantity is constant: one value for all chains, or one per chain.

    Raises:
        Refusal: a step size that is not positive, or a negative temperature.
    """

    def __init__(
        self,
        step_size: float | list[float] | None = None,
        temperature: float | list[float] | None = None,
        noise_temperature: float | list[float] | None = None,
    ) -> None:
        given = {"step_size": step_size, "temperature": temperature, "noise_temperature": noise_temperature}
        self._values = {
            name: numbers(name, value)[None] for name, value in given.items() if value is not None
        }
        self.quantities = tuple(self._values)
        for name, value in self._values.items():
            lowest = float(value.min())
            if not (lowest >= 0 if name == "noise_temperature" else lowest > 0):
                raise Refusal(
                    f"{name} = {lowest:g} must be {'at least 0' if 'noise' in name else 'positive'}."
                )

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return the constants, (1, 1 or C)."""
        return self._values
