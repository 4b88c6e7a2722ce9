"""Monitors: metrics computed while the chains run, for parameters too wide to store. One per file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mhrun.target import Target


class Monitor(ABC):
    """Observes the chains at some steps, keeps a running state, and returns metrics for each chain."""

    together: int = 1  # consecutive chains that it observes as one: their number must be a multiple

    def bind(
        self,
        collected: npt.NDArray[np.int64] | None,
        warmup: int = 0,
        total: int | None = None,
        rungs: int = 1,
    ) -> Self:
        """Return the monitor for a method.

        Args:
            collected: the steps whose draws the method collects; None: all.
            warmup: its steps of burn-in.
            total: its last step, or None if it is unknown.
            rungs: of its ladders: chain c is on rung c mod rungs.
        """
        return self

    def takes_snapshot(self, step: int) -> bool:
        """Return whether it takes a snapshot of the chains after this step."""
        return False

    @abstractmethod
    def refuses(self, target: Target) -> str | None:
        """Return why it cannot monitor chains on this target, or None."""

    @abstractmethod
    def start(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return its initial state, name -> (C, ...), which is saved in checkpoints."""

    @abstractmethod
    def steps_until_due(self, step: int) -> int:
        """Return the number of steps from `step` on up to the next after which it observes, both counted, 1 or more."""

    @abstractmethod
    def emits(self, step: int) -> bool:
        """Return whether it emits metrics after this step, or only updates its state."""

    @abstractmethod
    def observe(
        self,
        target: Target,
        memory: Mapping[str, Tensor],
        step: int,
        theta: Tensor,
        valid: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Observe theta (C, D) after a step; return the new state and the metrics, name -> (C,), if it emits any.

        `valid` (C,): which chains are at a draw of the target; None: all.
        """
