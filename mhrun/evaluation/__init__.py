"""What is told of the chains while they run, where theta is too wide to be kept. One per file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from mhrun.target import Target


class Evaluation(ABC):
    """Looks at the chains at some steps, remembers what it must, and tells numbers of each chain."""

    def over(self, collected: npt.NDArray[np.int64] | None) -> Self:
        """Return it for a method that collects the draws of these steps; None: of all."""
        return self

    def keeps(self, step: int) -> bool:
        """Say whether it takes a snapshot of the chains after this step."""
        return False

    @abstractmethod
    def refuses(self, target: Target) -> str | None:
        """Return why it cannot look at chains on this target, or None."""

    @abstractmethod
    def start(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return what it remembers at first, name -> (C, ...); saved with the state."""

    @abstractmethod
    def horizon(self, step: int) -> int:
        """Return how many steps it can wait from `step` on: it must look after the last of them."""

    @abstractmethod
    def tells(self, step: int) -> bool:
        """Say whether it tells something after this step, or only takes it in."""

    @abstractmethod
    def look(
        self,
        target: Target,
        memory: Mapping[str, Tensor],
        step: int,
        theta: Tensor,
        valid: Tensor | None = None,
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Take in theta (C, D) after a step; return what it remembers and, if it tells something, name -> (C,).

        `valid` (C,): which chains are at a draw of the target; None: all.
        """
