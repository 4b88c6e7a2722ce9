"""What is told of the chains while they run, where theta is too wide to be kept. One per file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from mhrun.target import Target


class Evaluation(Protocol):
    """Looks at the chains at some steps, remembers what it must, and tells numbers of each chain.

    One that follows a schedule in what it collects has ``over(collected) -> Evaluation``: it is given the steps
    whose draws are collected, or None where no schedule says.
    """

    def refuses(self, target: Target) -> str | None:
        """Return why it cannot look at chains on this target, or None."""
        ...

    def start(self, target: Target, chains: int) -> dict[str, Tensor]:
        """Return what it remembers at first, name -> (C, ...); saved with the state."""
        ...

    def horizon(self, step: int) -> int:
        """Return how many steps it can wait from `step` on: it must look after the last of them."""
        ...

    def tells(self, step: int) -> bool:
        """Say whether it tells something after this step, or only takes it in."""
        ...

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
        ...
