"""A step size tuned to an acceptance rate in burn-in, then frozen."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.numbers import is_number
from mhrun.schedules.plan import Memory, Schedule, is_auto


class Tuned(Schedule):
    """log step += gain k^-0.6 (acceptance - target) after the k-th window: Robbins-Monro, for each chain separately.

    The acceptance rate is that of the window of `window` steps. At the end of burn-in the logarithm of the step size is
    set to its average over the second half of the windows, and is constant after that, as in the papers.

    Args:
        start: initial step size; "auto": a pilot finds it.
        acceptance: the target acceptance rate; 0.30 in Li & Wong (2017); "auto", with ``start="auto"``: the most
            efficient one (`mhrun.kernels.acceptance`).
        window: steps between two changes.
        gain: gain of the first change. The optimal gain is 1 / (derivative of the acceptance rate by log step).

    Raises:
        Refusal: an invalid setting.
    """

    quantities: tuple[str, ...] = ("step_size",)

    def __init__(
        self, start: float | str, acceptance: float | str, window: int = 50, gain: float = 3.0
    ) -> None:
        self._open = is_auto(start)
        self._any_rate = is_auto(acceptance)
        if is_number(start) and not 0 < start < math.inf:
            raise Refusal(f"start = {start:g} must be positive and finite: it is a step size.")
        if self._any_rate and not self._open:
            raise Refusal("acceptance = auto requires start = auto: a pilot finds both.")
        start, acceptance = (1.0 if self._open else start), (0.5 if self._any_rate else acceptance)
        if isinstance(start, str) or isinstance(acceptance, str):
            raise Refusal(f"start = {start!r} and acceptance = {acceptance!r} must be numbers, or auto.")
        if not 0 < acceptance < 1:
            raise Refusal(f"acceptance = {acceptance:g} must lie strictly between 0 and 1.")
        if window < 1:
            raise Refusal(f"window = {window} must be at least 1.")
        self.first: float | Tensor = float(start)
        self.acceptance = acceptance
        self.window = window
        self.windows = 0
        self.gain = gain

    @property
    def is_open(self) -> bool:
        """Whether a pilot finds the initial step size."""
        return self._open

    def filled(self, step_size: Tensor, acceptance: float | None) -> Tuned:
        """Return the schedule that begins at these step sizes (C,), and goes on tuning to this acceptance rate."""
        if not self._open:
            return self
        schedule = copy.copy(self)
        schedule._open = False
        schedule.first = step_size.double().contiguous()
        if acceptance is not None:
            schedule.acceptance = acceptance
        return schedule

    @property
    def wanted(self) -> float | None:
        """The acceptance rate that a pilot aims at; None for the most efficient one."""
        return None if self._any_rate else self.acceptance

    @property
    def tuned_to(self) -> tuple[float, float]:
        """The acceptance rate, as a range."""
        return (self.acceptance, self.acceptance)

    def bind(self, warmup: int, steps: int) -> Tuned:
        """Return the schedule with its burn-in set to that of the method.

        Raises:
            Refusal: burn-in is shorter than a window.
        """
        if warmup < self.window:
            raise Refusal(
                f"warmup = {warmup} is too short to tune a step size in, which takes {self.window} steps at least; "
                f"{20 * self.window} settle it. Or take a constant one: schedule `fixed`, mhrun.Fixed."
            )
        placed = copy.copy(self)
        placed.windows = warmup // self.window
        return placed

    def start(self, chains: int) -> Memory:
        """Return the initial log step sizes, a zero sum for their average, and zero acceptance counts."""
        if isinstance(self.first, Tensor):
            log_step = self.first.expand(chains).log()
        else:
            log_step = torch.full((chains,), self.first, dtype=torch.float64).log()
        zero = torch.zeros(chains, dtype=torch.float64)
        return {"log_step": log_step, "sum": zero, "accepted": zero.clone()}

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return the step sizes (1, C)."""
        return {"step_size": memory["log_step"].exp()[None]}

    def steps_until_update(self, step: int) -> int | None:
        """Return the steps until the end of the window; None once tuning has ended."""
        done = step - 1
        return None if done >= self.windows * self.window else self.window - done % self.window

    def learn(self, memory: Memory, first_step: int, accepted: Tensor) -> Memory:
        """Count acceptances, and change the step sizes at the end of a window."""
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
