"""Stepwise decay of the step size with periodic restarts."""

from __future__ import annotations

import math

from torch import Tensor

from mhrun.errors import Refusal
from mhrun.schedules.plan import Memory, Stateless, numbers, on_grid


class Stairs(Stateless):
    """The step size is multiplied by `decay` every `every` steps, and by `rise` every `cycle` steps.

    This is the schedule of CMINT (Li & Wong 2017, section 4.3). Both factors apply at the end of a cycle, so each cycle
    starts at rise * decay^(cycle / every) times the initial step size of the previous cycle.

    Args:
        start: initial step size; a list: one for each chain.
        every: steps between two decays.
        cycle: steps of a cycle, a multiple of `every`.
        decay: factor in (0, 1].
        rise: factor of at least 1.

    Raises:
        Refusal: an invalid setting.
    """

    quantities: tuple[str, ...] = ("step_size",)

    def __init__(
        self, start: float | list[float], every: int, cycle: int, decay: float = 0.9, rise: float = 2.0
    ) -> None:
        self.first = numbers("start", start)
        if not bool((self.first > 0).all()) or not (0 < decay <= 1 <= rise):
            raise Refusal("Stairs needs start > 0, 0 < decay <= 1 and rise >= 1.")
        if every < 1 or cycle < every or cycle % every:
            raise Refusal(f"cycle = {cycle} must be a multiple of every = {every}, which must be at least 1.")
        self.every = every
        self.cycle = cycle
        self.decay = decay
        self.rise = rise

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return the step sizes (K, 1 or C)."""
        factors = on_grid(
            lambda t: (
                (t // self.every) * math.log(self.decay) + (t // self.cycle) * math.log(self.rise)
            ).exp(),  # neither power alone, which may overflow
            first_step,
            steps,
        )
        return {"step_size": factors[:, None] * self.first}
