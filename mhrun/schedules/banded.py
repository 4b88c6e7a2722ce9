"""A step size adapted in burn-in to keep the acceptance rate within a band, then frozen."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.schedules.plan import Memory, Schedule


class Banded(Schedule):
    """After each window a chain multiplies its step size by `factor` above `high` acceptance, divides it below `low`.

    Rungs of a ladder may start one after the other (`EquiEnergy`): chain c is rung c mod rungs, rung k starts `stagger`
    steps after rung k+1. Each rung adapts in its first `length` steps; after that its step size is constant. The
    acceptance rate counts steps of any kind, including jumps.

    Args:
        start: initial step size.
        low: acceptance rate below which it decreases; 0.2 in Li & Wong (2017), Appendix D.
        high: acceptance rate above which it increases; 0.5 there.
        window: steps between two changes.
        factor: factor of a change.
        length: steps of a rung's burn-in; None for the whole burn-in of the method.
        rungs: rungs of a ladder.
        stagger: steps between the starts of neighbouring rungs.

    Raises:
        Refusal: an invalid setting.
    """

    quantities: tuple[str, ...] = ("step_size",)

    def __init__(
        self,
        start: float,
        low: float = 0.2,
        high: float = 0.5,
        window: int = 100,
        factor: float = 1.5,
        length: int | None = None,
        rungs: int = 1,
        stagger: int = 0,
    ) -> None:
        if not 0 < start < math.inf:
            raise Refusal(f"step size {start:g} must be positive and finite.")
        if not (0 <= low < high <= 1 and factor > 1):
            raise Refusal(
                f"a band from {low:g} to {high:g} with a factor of {factor:g} is invalid; choose low < high."
            )
        if window < 1 or rungs < 1 or stagger < 0:
            raise Refusal("Banded needs window >= 1, rungs >= 1 and stagger >= 0.")
        if stagger % window:
            raise Refusal(f"stagger = {stagger} must be a whole number of windows of {window} steps.")
        self.first = float(start)
        self.low, self.high = low, high
        self.window, self.factor = window, factor
        self.length = length
        self.rungs, self.stagger = rungs, stagger

    @property
    def tuned_to(self) -> tuple[float, float]:
        """The band."""
        return (self.low, self.high)

    def bind(self, warmup: int, steps: int) -> Banded:
        """Return the schedule with its burn-in set to that of the method.

        Raises:
            Refusal: burn-in is shorter than a window, or than that of all rungs.
        """
        placed = copy.copy(self)
        last = (self.rungs - 1) * self.stagger
        length = warmup - last if self.length is None else self.length
        placed.length = length // self.window * self.window
        if self.length is not None and self.length < self.window:
            raise Refusal(f"length = {self.length} must be at least one window of {self.window} steps.")
        if placed.length < self.window or last + length > warmup:
            least = last + max(length, 10 * self.window)
            raise Refusal(
                f"warmup = {warmup} is too short for the burn-in of every rung; make it {least} or more."
            )
        return placed

    def start(self, chains: int) -> Memory:
        """Return the initial step sizes and zero acceptance counts.

        Raises:
            Refusal: the number of chains is not a multiple of the number of rungs.
        """
        if chains % self.rungs:
            raise Refusal(
                f"Banded has {self.rungs} rungs, and {chains} chains are not a whole number of ladders."
            )
        first = torch.full((chains,), self.first, dtype=torch.float64)
        return {"step": first, "accepted": torch.zeros(chains, dtype=torch.float64)}

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return the step sizes (1, C)."""
        return {"step_size": memory["step"][None]}

    def _adapts(self, done: int) -> Tensor:
        """Return which rungs adapt in the step after `done` steps, (rungs,) bool."""
        assert self.length is not None
        rung_steps = done - torch.arange(self.rungs - 1, -1, -1) * self.stagger
        return (rung_steps >= 0) & (rung_steps < self.length)

    def steps_until_update(self, step: int) -> int | None:
        """Return the steps until the end of the window, or until a rung adapts again; None if none ever does."""
        done = step - 1
        if self._adapts(done).any():
            return self.window - done % self.window
        begins = [k * self.stagger - done for k in range(self.rungs)]
        return min((wait for wait in begins if wait > 0), default=None)

    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Count acceptances, and change the step sizes at the end of a window."""
        if not (adapts := self._adapts(first_step - 1)).any():
            return memory
        count = memory["accepted"] + accepted.sum(0, dtype=torch.float64)
        if (first_step - 1 + len(accepted)) % self.window:
            return memory | {"accepted": count}
        rate = count / self.window
        change = torch.where(
            rate > self.high, self.factor, torch.where(rate < self.low, 1 / self.factor, 1.0)
        )
        step = torch.where(adapts.repeat(len(rate) // self.rungs), memory["step"] * change, memory["step"])
        return {"step": step, "accepted": torch.zeros_like(count)}
