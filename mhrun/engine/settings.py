"""How methods run: with which executor and threads, and how often results are written."""

from __future__ import annotations

from dataclasses import dataclass

from mhrun.engine.execution.executors import EXECUTORS
from mhrun.errors import Refusal, check_choice
from mhrun.numbers import is_number, whole_number

CHUNK_BYTES = 64 << 20  # most bytes that steps between two updates of progress return
_BLOCK_BYTES = 256 << 20  # bytes of draws that make a block
HELD_BYTES = 2 * (_BLOCK_BYTES + CHUNK_BYTES)
"""Most bytes held of draws: a block, and the last one while it is converted."""


@dataclass(frozen=True)
class Settings:
    """How to run.

    Args:
        executor: auto (a compiled loop where it pays), compiled, torch, or graph (the step as a captured graph).
        threads: of compiled loops and of torch; None: all cores for compiled loops, and for torch where the work of a
            step pays for them.
        block_seconds: seconds between two blocks.
        block_bytes: most bytes held between two blocks.

    Raises:
        Refusal: an invalid setting.
    """

    executor: str = "auto"
    threads: int | None = None
    block_seconds: float = 10.0
    block_bytes: int = _BLOCK_BYTES

    def __post_init__(self) -> None:
        check_choice("executor", self.executor, EXECUTORS)
        if self.threads is not None:
            whole_number("runtime.threads", self.threads, least=1, other="null")
        if not is_number(self.block_seconds) or not self.block_seconds >= 0:  # NaN neither
            raise Refusal(f"runtime.block_seconds = {self.block_seconds!r} must be a number, at least 0.")
