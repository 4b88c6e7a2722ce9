"""The polynomial step-size decay of stochastic approximation."""

from __future__ import annotations

import copy
import math

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.numbers import is_number
from mhrun.schedules.plan import Memory, Stateless, is_auto, numbers, on_grid

_FALL = 4.0  # the first step size over the last, where a pilot finds them


class Polynomial(Stateless):
    """step_size(t) = a (b + t)^-exponent, from `start` at the first step to `end` at the last.

    The schedule of Welling & Teh (2011), with a and b computed from the two ends. Without `end`, b is given and
    a = (b + 1)^exponent start; with b = 0 the decay is start t^-exponent.

    Args:
        start: the first step size; a list: one for each chain, only without `end`; "auto": a pilot finds a step size,
            and the decay is from twice of it to half of it.
        end: the last step size, or None; that of `start` makes all of them equal.
        exponent: exponent of the decay.
        hold: steps at `start` before the decay begins.
        b: steps over which the decay is slow, only without `end`.

    Raises:
        Refusal: start < end, or an invalid setting.
    """

    quantities: tuple[str, ...] = ("step_size",)

    def __init__(
        self,
        start: float | list[float] | str,
        end: float | str | None,
        exponent: float = 0.55,
        hold: int = 0,
        b: float = 0.0,
    ) -> None:
        if isinstance(end, list):
            raise Refusal(f"end = {end} must be one number for all chains, or null.")
        self._open = is_auto(start) or is_auto(end)
        if self._open:
            for name, value in (("start", start), ("end", end)):
                if is_number(value) and value <= 0:
                    raise Refusal(f"{name} = {value:g} must be positive, or auto.")
            if not (is_auto(start) and (is_auto(end) or end is None)):
                raise Refusal(
                    f"start = {start} cannot be combined with end = {end}: give both numbers, both auto, or start=auto "
                    "with end=null."
                )
            start, end = 1.0, (None if end is None else 1.0 / _FALL)
        if isinstance(start, str) or isinstance(end, str):
            raise Refusal(f"start = {start!r} and end = {end!r} must be numbers, or auto.")
        self.first = numbers("start", start)
        lowest = float(self.first.min())
        if not (lowest > 0 and (end is None or 0 < end <= lowest)):
            raise Refusal(
                f"a polynomial decay goes down: 0 < end <= start, not start = {lowest:g}, end = {end}."
            )
        if end is not None and len(self.first) > 1:
            raise Refusal("a polynomial decay with a start for each chain needs end=null.")
        if exponent <= 0 or hold < 0:
            raise Refusal(f"exponent = {exponent:g} must be positive and hold = {hold} not negative.")
        if not 0 <= b < math.inf or (b and end is not None):
            raise Refusal(f"b = {b:g} must be 0 or positive, and requires end=null: two ends fix b.")
        self.last = end
        self.exponent = float(exponent)
        self.hold = hold
        self.b = float(b)
        self._b = math.inf  # b + 1: the first step has number 1

    @property
    def is_open(self) -> bool:
        """Whether a pilot finds the step sizes."""
        return self._open

    def filled(self, step_size: Tensor, acceptance: float | None) -> Polynomial:
        """Return the decay from twice the step size that a pilot found, of (C,) the least, to half of it."""
        if not self._open:
            return self
        schedule = copy.copy(self)
        schedule._open = False
        schedule.first = step_size.double().min()[None] * _FALL**0.5
        schedule.last = None if self.last is None else float(schedule.first) / _FALL
        return schedule

    def bind(self, warmup: int, steps: int) -> Polynomial:
        """Return the decay over all steps.

        Raises:
            Refusal: `hold` leaves no step for the decay, or the exponent is too small for it.
        """
        falling = warmup + steps - self.hold
        if falling < 1:
            raise Refusal(f"hold = {self.hold} leaves none of {warmup + steps} steps for the decay.")
        placed = copy.copy(self)
        if self.last is None:
            placed._b = 1.0 + self.b
        elif self.last < float(self.first):  # ((b + falling - 1) / b)^exponent = first / last
            try:
                placed._b = max(1, falling - 1) / ((float(self.first) / self.last) ** (1 / self.exponent) - 1)
            except OverflowError as error:
                raise Refusal(
                    f"exponent = {self.exponent:g} is too small for a decay from {float(self.first):g} to "
                    f"{self.last:g}; raise it, or lower the ratio of the two."
                ) from error
        return placed

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return the step sizes (K, 1 or C); the first step has number 1."""
        factors = on_grid(
            lambda t: (1 + (t - self.hold).clamp_min(0) / self._b) ** -self.exponent, first_step, steps
        )
        return {"step_size": factors[:, None] * self.first}
