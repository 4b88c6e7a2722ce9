"""The cyclical cosine step-size schedule."""

from __future__ import annotations

import copy
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.numbers import whole_number
from mhrun.schedules.plan import OF_TARGET, Memory, Stateless, is_auto, numbers, on_grid


class Cosine(Stateless):
    """step_size(k) = start/2 (cos(pi r) + 1) with r = mod(k - 1, L)/L, in cycles of L = ceil(K/cycles) of all K steps.

    The cyclical schedule of Zhang et al. (2020), eq. 2. Each cycle has two stages (their Algorithm 1):

    - exploration, r < `explore`: noise at temperature `exploring`, no draws are collected;
    - sampling: noise at temperature `sampling`, draws are collected. Only these are kept in the trace and used for
      ensembles.

    Snapshot ensembles (Huang et al. 2017) collect the last draw of each cycle of an optimiser: ``samples=1``.

    Args:
        start: step size at the beginning of a cycle; "auto": four times what a pilot finds; a list: one for each chain.
        cycles: number of cycles; the last is shorter if the steps do not divide evenly.
        explore: share of a cycle spent in exploration.
        exploring: noise temperature in the exploration stage.
        sampling: noise temperature in the sampling stage; None for that of the target.
        samples: number of draws collected at the end of each cycle; None: all of the sampling stage.
        apart: steps between two collected draws.

    Raises:
        Refusal: an invalid setting.
    """

    quantities: tuple[str, ...] = ("step_size", "noise_temperature")

    def __init__(
        self,
        start: float | list[float] | str,
        cycles: int,
        explore: float = 0.8,
        exploring: float = 0.0,
        sampling: float | None = None,
        samples: int | None = None,
        apart: int = 1,
    ) -> None:
        self._open = is_auto(start)
        self.first = numbers("start", 1.0 if isinstance(start, str) and self._open else start)  # type: ignore[arg-type]
        self.cycles = whole_number("cycles", cycles, least=1)
        self.apart = whole_number("apart", apart, least=1)
        self.samples = None if samples is None else whole_number("samples", samples, least=1, other="null")
        if not bool((self.first > 0).all()) or not 0 <= explore < 1:
            raise Refusal("Cosine needs start > 0 and 0 <= explore < 1.")
        if not (0 <= exploring < math.inf and (sampling is None or 0 <= sampling < math.inf)):
            raise Refusal("Cosine needs temperatures that are finite and at least 0.")
        self.explore = explore
        self.exploring = exploring
        self.sampling = OF_TARGET if sampling is None else sampling
        self.total = self.cycles
        self.length = 1

    @property
    def is_open(self) -> bool:
        """Whether a pilot finds the step size."""
        return self._open

    def filled(self, step_size: Tensor, acceptance: float | None) -> Cosine:
        """Return the cycles from four times the step sizes that a pilot found (C,): half of that on average."""
        if not self._open:
            return self
        schedule = copy.copy(self)
        schedule._open = False
        schedule.first = 4.0 * step_size.double()
        return schedule

    def bind(self, warmup: int, steps: int) -> Cosine:
        """Return the cycles of all steps.

        Raises:
            Refusal: a cycle is too short for its stages and samples.
        """
        placed = copy.copy(self)
        placed.total = warmup + steps
        placed.length = math.ceil(placed.total / self.cycles)
        room = self.cycles <= placed.total
        counts = np.bincount(placed.cycle_of(placed.collected()), minlength=self.cycles if room else 0)
        if (
            len(counts) != self.cycles
            or (counts < 1).any()
            or (self.samples and (counts < self.samples).any())
        ):
            made = math.ceil(placed.total / placed.length)
            if made < self.cycles:
                raise Refusal(
                    f"{self.cycles} cycles of {placed.total} steps: a cycle has {placed.length} steps, rounded up, and "
                    f"{made} cycles have them all. Choose {made} cycles, or a number of steps that {self.cycles} "
                    "divides."
                )
            last = placed.total - (made - 1) * placed.length
            if (counts[:-1] >= (self.samples or 1)).all() and last < placed.length:
                raise Refusal(
                    f"{self.cycles} cycles of {placed.total} steps: a cycle has {placed.length} steps, of which "
                    f"{placed._exploring_steps()} explore, and the last has {last}, which leaves too few for the draws "
                    f"to be collected. Choose a number of steps that {self.cycles} divides, or other cycles."
                )
            raise Refusal(
                f"{self.cycles} cycles of {placed.total} steps: a cycle has {placed.length} steps, of which "
                f"{placed.length - placed._exploring_steps()} sample, which is too few for the draws to be collected. "
                "Choose fewer cycles, a lower explore, or fewer samples."
            )
        return placed

    def _exploring_steps(self) -> int:
        """Return the number of steps of a cycle with r < explore."""
        return math.ceil(self.explore * self.length - 1e-9)

    def values(self, memory: Memory, first_step: int, steps: int) -> dict[str, Tensor]:
        """Return step sizes (K, 1 or C) and noise temperatures (K, 1)."""
        length, explores = self.length, self._exploring_steps()
        factors = on_grid(lambda t: 0.5 * (torch.cos(math.pi * (t % length) / length) + 1), first_step, steps)
        place = torch.arange(first_step - 1, first_step - 1 + steps) % length
        temperatures = torch.tensor([self.exploring, self.sampling], dtype=torch.float64)
        noise = temperatures[(place >= explores).long()]
        return {"step_size": factors[:, None] * self.first, "noise_temperature": noise[:, None]}

    def collected(self) -> npt.NDArray[np.int64]:
        """Return the step numbers (from 1) whose draws are collected."""
        by_cycle = []
        for begin in range(0, self.total, self.length):
            end = min(begin + self.length, self.total)
            earliest = begin + self._exploring_steps()
            if self.samples is not None:
                earliest = max(earliest, end - 1 - (self.samples - 1) * self.apart)
            by_cycle.append(np.arange(end, earliest, -self.apart)[::-1])
        return np.concatenate(by_cycle).astype(np.int64)

    def cycle_of(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the index (from 0) of the cycle of each step."""
        return (steps - 1) // self.length
