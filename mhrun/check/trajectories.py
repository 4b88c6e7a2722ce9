"""Where chains of a kernel under test go, and the periods for which it requests random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.random import Draws, Streams
from mhrun.types import Info, State


class ChainPaths(NamedTuple):
    """Where chains went in some steps."""

    theta: Tensor  # (K, C, D)
    infos: list[Info]
    state: State
    # Each period at which a kernel changes its step -> how many of those steps were run
    periods: Mapping[int, int]

    def stat(self, name: str) -> Tensor:
        """Return a statistic of all steps, (K, C)."""
        return torch.stack([getattr(info, name) for info in self.infos])


class RecordedDraws(Draws):
    """Random numbers that record the periods for which a kernel requests them, see `Draws.due`.

    Not those of the streams that it derives by `part` and `trial`, whose steps are counted otherwise.
    """

    def __init__(self, streams: Streams, ahead: int) -> None:
        self.periods: dict[int, set[int]] = {}  # the steps that are special for each
        super().__init__(streams, 0, ahead)

    def due(self, every: int, last: bool = False) -> bool:
        """Return whether a step is due, see `Draws.due`."""
        is_due = super().due(every, last)
        self._record(every, is_due)
        return is_due

    def coin(self, name: str, every: int) -> bool:
        """Return a coin toss, see `Draws.coin`."""
        self._record(every, self.step % every == 0)
        return super().coin(name, every)

    def parity(self, every: int) -> int:
        """Return 0 and 1 alternately, see `Draws.parity`."""
        self._record(every, self.step % every == 0)
        return super().parity(every)

    def _record(self, every: int, is_due: bool) -> None:
        if every > 1 and self.step:  # a start is no step
            steps = self.periods.setdefault(every, set())
            if is_due:
                steps.add(self.step)


def steps_about(period: int, count: int) -> list[int]:
    """Return `count` step numbers, alternately a multiple of a period and the next.

    Every other one is due, whether steps are due at 1, 1 + period, ... or at period, 2 period, ... A kernel with an
    invariant distribution keeps it in every step, so that it keeps it in any selection of steps.
    """
    return [(k // 2 + 1) * period + k % 2 for k in range(count)]
