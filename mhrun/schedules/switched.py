"""Constants that change at given steps."""

from __future__ import annotations

from typing import Self

import torch

from mhrun.errors import Refusal
from mhrun.schedules.plan import Blind, Memory


class Switched(Blind):
    """Each named quantity at one value after the other; the next begins after step ``at[i]``.

    A temperature that drops once a mode is found (Seita et al. 2017, Figure 3).

    Args:
        at: steps after which the quantities change, increasing; burn-in counts.
        step_size: a value for each stretch, one more than there are changes.
        temperature: likewise.
        noise_temperature: likewise.

    Raises:
        Refusal: changes that do not increase, a number of values that does not fit, or a step size or a
            temperature that is not positive.
    """

    def __init__(
        self,
        at: list[int],
        step_size: list[float] | None = None,
        temperature: list[float] | None = None,
        noise_temperature: list[float] | None = None,
    ) -> None:
        if not at or not all(
            isinstance(step, int | float) and step >= 1 and step == int(step) for step in at
        ):
            raise Refusal(f"at = {list(at)} must be whole numbers of steps, at least 1.")
        self._at = torch.as_tensor(at, dtype=torch.int64)
        if (self._at.diff() <= 0).any():
            raise Refusal(f"at = {list(at)} must be in increasing order.")
        given = {"step_size": step_size, "temperature": temperature, "noise_temperature": noise_temperature}
        self._values = {
            name: torch.as_tensor(list(values), dtype=torch.float64)
            for name, values in given.items()
            if values is not None
        }
        self.quantities = tuple(self._values)
        for name, values in self._values.items():
            if len(values) != len(at) + 1:
                raise Refusal(f"{name} has {len(values)} values; {len(at)} changes need {len(at) + 1}.")
            if not bool((values >= 0 if name == "noise_temperature" else values > 0).all()):
                raise Refusal(
                    f"{name} = {values.tolist()} must be {'at least 0' if 'noise' in name else 'positive'}."
                )

    def over(self, warmup: int, steps: int) -> Self:
        """Return itself, if all its changes come.

        Raises:
            Refusal: one would come after the last step.
        """
        if int(self._at[-1]) >= warmup + steps:
            raise Refusal(f"at = {self._at.tolist()} comes after the last of {warmup + steps} steps.")
        return self

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, torch.Tensor]:
        """Return each quantity at some steps, (K, 1)."""
        stretch = torch.searchsorted(self._at, torch.arange(first_step, first_step + steps))
        return {name: values[stretch][:, None] for name, values in self._values.items()}
