"""What a compiled loop over chains and steps works on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mhrun.native import Piece, compiled, over_chains
from mhrun.native.philox import Workspaces
from mhrun.types import Record, State

_alone: dict[Piece, Piece] = {}


class LoopInputs(NamedTuple):
    """A block of K steps, laid out for ``body(first_chain, last_chain, first_step, last_step, work, *args)``.

    `work` is a thread's `mhrun.native.philox.Workspace`.
    """

    args: tuple[Any, ...]
    steps: int  # K
    points: tuple[
        npt.NDArray[np.float64], ...
    ]  # (C, ...) each: what belongs to where a chain is, and moves with it
    stopped: npt.NDArray[np.bool_]  # (C,), chains that stay where they are
    theta: npt.NDArray[np.float64]  # (C, K, D), in which each step's theta is recorded
    finish: Callable[[], tuple[State, Record]]

    def run(self, body: Piece, threads: int, work: Workspaces) -> tuple[State, Record]:
        """Do all the steps, chains in parallel."""
        if body not in _alone:
            _alone[body] = compiled(_whole(body))
        over_chains(_alone[body], len(self.stopped), threads, self.steps, self.args, own=work)
        return self.finish()


def _whole(body: Piece) -> Piece:
    def whole(first_chain: Any, last_chain: Any, work: Any, steps: Any, args: Any) -> None:
        body(first_chain, last_chain, 0, steps, work, *args)

    return whole
