"""The polynomial decay of stochastic approximation."""

from __future__ import annotations

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.schedules.plan import Blind, Memory


class Polynomial(Blind):
    """step_size(t) = a (b + t)^-exponent, from `start` at the first step to `end` at the last.

    The schedule of Welling & Teh (2011), with a and b solved from the two ends.

    Raises:
        Refusal: ends that do not decay, or a setting that has no meaning.
    """

    quantities: tuple[str, ...] = ("step_size",)

    def __init__(self, start: float, end: float, steps: int, exponent: float = 0.55) -> None:
        if not 0 < end < start:
            raise Refusal(
                f"a polynomial decay goes down: 0 < end < start, not start = {start:g}, end = {end:g}."
            )
        if exponent <= 0 or steps < 2:
            raise Refusal(f"exponent = {exponent:g} must be positive and steps = {steps} at least 2.")
        self.start_value = start
        self.exponent = exponent
        # ((b + steps - 1) / b)^exponent = start / end
        self.offset = (steps - 1) / ((start / end) ** (1 / exponent) - 1)

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return the step sizes (K, 1); the first step has number 1."""
        t = torch.arange(first_step - 1, first_step - 1 + steps, dtype=torch.float64)
        return {"step_size": (self.start_value * (1 + t / self.offset) ** -self.exponent)[:, None]}
