"""How many threads torch uses: one, unless a step is large enough for more.

Torch hands the parts of each operation to all threads and waits for the last. Beside another process one of the cores
is late, and an operation of microseconds waits for milliseconds: small steps are eight times slower on two cores of
which one is busy. So more threads are used only where the operations of a step are long, and where they are measured
to be faster when the method begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from mhrun.cores import usable_cores
from mhrun.engine.cost import arithmetic_seconds

if TYPE_CHECKING:
    from mhrun.engine.method import Method

_PAYS = 0.05  # seconds of a step on one core; operations take milliseconds then
_HEAVY = 2.0  # seconds of a step on one core whose operations are so long that waiting hardly matters
_ROUNDS = 3  # steps that are timed with each number of threads
_LONG_STEP = 5.0  # seconds of a step from which waiting for another process hardly matters
_CLEARLY = 0.8  # more threads are used if a step takes less than this share of its time with one


def torch_threads(method: Method, threads: int | None) -> int:
    """Return how many threads torch has at most for the steps of a method.

    Args:
        method: what is run.
        threads: what the user chose; None: one, or all cores where a step is estimated to take more than 50 ms on one,
            from chains, data per step and parameters.
    """
    if threads is not None:
        return threads
    return usable_cores() if arithmetic_seconds(method) > _PAYS else 1


def is_heavy(method: Method) -> bool:
    """Return whether a step is estimated to take seconds on one core, so that steps to compare would take minutes."""
    return arithmetic_seconds(method) > _HEAVY


def faster_threads(threads: int, step: Callable[[], object]) -> int:
    """Return `threads`, or 1 if steps are not clearly faster with them, as when other processes use the cores.

    If a step takes more than 5 seconds, there is no comparison, which would take minutes.

    Args:
        threads: at most.
        step: runs a step. It is called a few times.
    """
    if threads == 1:
        return 1
    seconds = {threads: float("inf"), 1: float("inf")}
    with limited(threads):
        step()  # the first one prepares things
        for _ in range(_ROUNDS):
            for count in seconds:
                torch.set_num_threads(count)
                began = time.perf_counter()
                step()
                seconds[count] = min(seconds[count], time.perf_counter() - began)
                if seconds[threads] > _LONG_STEP:
                    return threads
    return threads if seconds[threads] < _CLEARLY * seconds[1] else 1


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Let torch work with so many threads, and with as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
