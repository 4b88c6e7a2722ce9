"""A step size that is tuned to an acceptance rate in burn-in, and frozen after it."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.schedules.plan import Memory, Schedule


class Tuned(Schedule):
    """Robbins-Monro on the logarithm of the step size, each chain for itself.

    After the k-th window of `window` steps, log step += gain k^-0.6 (acceptance in the window - target),
    to the end of burn-in; then the step size is the average over the second half of the windows.
    Constant after that, as the papers use it.

    Args:
        start: the first step size.
        acceptance: the rate to reach; 0.30 in Li & Wong (2017).
        window: steps between two changes.
        gain: of the first change. The best gain is one over the slope of acceptance against log step.

    Raises:
        Refusal: an invalid setting.
    """

    quantities: tuple[str, ...] = ("step_size",)

    def __init__(self, start: float, acceptance: float, window: int = 50, gain: float = 3.0) -> None:
        if start <= 0:
            raise Refusal(f"step size {start:g} must be positive.")
        if not 0 < acceptance < 1:
            raise Refusal(f"acceptance = {acceptance:g} must lie strictly between 0 and 1.")
        if window < 1:
            raise Refusal(f"window = {window} must be at least 1.")
        self.first = float(start)
        self.acceptance = acceptance
        self.window = window
        self.windows = 0
        self.gain = gain

    def bind(self, warmup: int, steps: int) -> Tuned:
        """Return the schedule that has the burn-in to tune in."""
        if warmup < self.window:
            raise Refusal(
                f"warmup = {warmup} is too short to tune a step size in; make it {20 * self.window} or more."
            )
        placed = copy.copy(self)
        placed.windows = warmup // self.window
        return placed

    def start(self, chains: int) -> Memory:
        """Return the first log step sizes, and room for their average and the acceptances so far."""
        log_step = torch.full((chains,), self.first, dtype=torch.float64).log()
        zero = torch.zeros(chains, dtype=torch.float64)
        return {"log_step": log_step, "sum": zero, "accepted": zero.clone()}

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return the step sizes (1, C)."""
        return {"step_size": memory["log_step"].exp()[None]}

    def steps_until_update(self, step: int) -> int | None:
        """Return the steps that are left of the window."""
        done = step - 1
        return None if done >= self.windows * self.window else self.window - done % self.window

    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Count acceptances, and change the step sizes when a window is full."""
        done = first_step - 1 + len(accepted)
        if done > self.windows * self.window:
            return memory
        count = memory["accepted"] + accepted.sum(0, dtype=torch.float64)
        if done % self.window:
            return memory | {"accepted": count}
        k = done // self.window
        log_step = memory["log_step"] + self.gain * k**-0.6 * (count / self.window - self.acceptance)
        total = memory["sum"] + (log_step if k > self.windows // 2 else 0.0)
        if k == self.windows:
            log_step = total / (self.windows - self.windows // 2)
        return {"log_step": log_step, "sum": total, "accepted": torch.zeros_like(count)}
