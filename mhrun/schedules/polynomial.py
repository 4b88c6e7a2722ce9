"""The polynomial step-size decay of stochastic approximation."""

from __future__ import annotations

import copy
import math

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.schedules.plan import Memory, Stateless, numbers, on_grid


class Polynomial(Stateless):
    """step_size(t) = a (b + t)^-exponent, from `start` at the first step to `end` at the last.

    The schedule of Welling & Teh (2011), with a and b computed from the two ends. Without `end`, b is given and
    a = (b + 1)^exponent start; with b = 0 the decay is start t^-exponent.

    Args:
        start: the first step size; a list: one for each chain, only without `end`.
        end: the last step size, or None.
        exponent: exponent of the decay.
        hold: steps at `start` before the decay begins.
        b: steps over which the decay is slow, only without `end`.

    Raises:
        Refusal: start <= end, or an invalid setting.
    """

    quantities: tuple[str, ...] = ("step_size",)

    def __init__(
        self,
        start: float | list[float],
        end: float | None,
        exponent: float = 0.55,
        hold: int = 0,
        b: float = 0.0,
    ) -> None:
        self.first = numbers("start", start)
        lowest = float(self.first.min())
        if not (lowest > 0 and (end is None or 0 < end < lowest)):
            raise Refusal(
                f"a polynomial decay goes down: 0 < end < start, not start = {lowest:g}, end = {end}."
            )
        if end is not None and len(self.first) > 1:
            raise Refusal("a polynomial decay with a start for each chain needs end=null.")
        if exponent <= 0 or hold < 0:
            raise Refusal(f"exponent = {exponent:g} must be positive and hold = {hold} not negative.")
        if not 0 <= b < math.inf or (b and end is not None):
            raise Refusal(f"b = {b:g} must be 0 or positive, and goes with end=null: two ends fix b.")
        self.last = end
        self.exponent = float(exponent)
        self.hold = hold
        self.b = float(b)
        self._b = math.inf  # b + 1: the first step has number 1

    def bind(self, warmup: int, steps: int) -> Polynomial:
        """Return the decay over all steps.

        Raises:
            Refusal: `hold` leaves no step for the decay.
        """
        falling = warmup + steps - self.hold
        if falling < 1:
            raise Refusal(f"hold = {self.hold} leaves none of {warmup + steps} steps for the decay.")
        placed = copy.copy(self)
        if self.last is None:
            placed._b = 1.0 + self.b
        else:  # ((b + falling - 1) / b)^exponent = first / last
            placed._b = max(1, falling - 1) / ((float(self.first) / self.last) ** (1 / self.exponent) - 1)
        return placed

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return the step sizes (K, 1 or C); the first step has number 1."""
        factors = on_grid(
            lambda t: (1 + (t - self.hold).clamp_min(0) / self._b) ** -self.exponent, first_step, steps
        )
        return {"step_size": factors[:, None] * self.first}
