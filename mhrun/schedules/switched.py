"""Constants that change at given steps."""

from __future__ import annotations

import copy
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from mhrun.errors import Refusal
from mhrun.numbers import is_whole
from mhrun.schedules.plan import Memory, Stateless, numbers


class Switched(Stateless):
    """Piecewise constant quantities: value i + 1 applies after step ``at[i]``.

    Uses: a temperature that drops once a mode is found (Seita et al. 2017, Figure 3); noise that starts late, after
    which draws are collected (Zhang et al. 2020, section 5.3: their traditional SG-MCMC).

    Args:
        at: steps after which the quantities change, increasing; burn-in counts.
        step_size: a value for each interval, one more than there are changes.
        temperature: likewise.
        noise_temperature: likewise.
        samples: number of draws collected in the last interval, evenly spaced and including the last draw; None: this
            schedule does not choose the collected draws.

    Raises:
        Refusal: changes that do not increase, a wrong number of values, a step size or a temperature that is not
            positive, or no samples.
    """

    def __init__(
        self,
        at: list[int],
        step_size: list[float] | None = None,
        temperature: list[float] | None = None,
        noise_temperature: list[float] | None = None,
        samples: int | None = None,
    ) -> None:
        if not at or not all(is_whole(step) and step >= 1 for step in at):
            raise Refusal(f"at = {list(at)} must be whole numbers of steps, at least 1.")
        self._at = torch.as_tensor(at, dtype=torch.int64)
        if (self._at.diff() <= 0).any():
            raise Refusal(f"at = {list(at)} must be in increasing order.")
        if samples is not None and samples < 1:
            raise Refusal(f"samples = {samples} must be at least 1, or null.")
        self._samples = samples
        self._total = int(self._at[-1])
        settings = {
            "step_size": step_size,
            "temperature": temperature,
            "noise_temperature": noise_temperature,
        }
        self._values = {
            name: numbers(name, list(values)) for name, values in settings.items() if values is not None
        }
        self.quantities = tuple(self._values)
        for name, values in self._values.items():
            if len(values) != len(at) + 1:
                raise Refusal(f"{name} has {len(values)} values; {len(at)} changes need {len(at) + 1}.")
            if not bool((values >= 0 if name == "noise_temperature" else values > 0).all()):
                raise Refusal(
                    f"{name} = {values.tolist()} must be {'at least 0' if 'noise' in name else 'positive'}."
                )

    def bind(self, warmup: int, steps: int) -> Self:
        """Return this schedule for the given numbers of steps.

        Raises:
            Refusal: a change after the last step, or a last interval with fewer steps than `samples`.
        """
        total, last = warmup + steps, int(self._at[-1])
        if last >= total:
            raise Refusal(f"at = {self._at.tolist()} comes after the last of {total} steps.")
        if self._samples is not None and self._samples > total - last:
            raise Refusal(
                f"samples = {self._samples} are more than the {total - last} steps after step {last}."
            )
        placed = copy.copy(self)
        placed._total = total
        return placed

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, torch.Tensor]:
        """Return each quantity at the `steps` steps from `first_step` on, (K, 1)."""
        stretch = torch.searchsorted(self._at, torch.arange(first_step, first_step + steps))
        return {name: values[stretch][:, None] for name, values in self._values.items()}

    def collected(self) -> npt.NDArray[np.int64] | None:
        """Return the step numbers (from 1) whose draws are collected; None: this schedule does not choose them."""
        if self._samples is None:
            return None
        last = int(self._at[-1])
        return last + (self._total - last) * np.arange(1, self._samples + 1) // self._samples
