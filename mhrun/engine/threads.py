"""How many threads torch works with: one, unless the work of a step pays for more.

Torch hands the parts of each operation to all threads and waits for the last. Beside another process one of the cores
is late, and an operation of microseconds waits for milliseconds: small steps are eight times slower on two cores of
which one is busy. So more threads are used only where the operations of a step are long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from mhrun.cores import usable_cores

if TYPE_CHECKING:
    from mhrun.engine.method import Method

_PAYS = 0.05  # seconds of a step on one core; operations take milliseconds then
_DATUM, _PARAMETER = 6e-8, 2e-10  # seconds for a datum of a chain, and for each of its parameters
_PASS = 5e-9  # seconds for a parameter of a chain in all passes of a step over the state


def torch_threads(method: Method, threads: int | None) -> int:
    """Return how many threads torch has for the steps of a method.

    Args:
        method: what is run.
        threads: what the user chose; None: one, or all cores where a step takes more than 50 ms on one. This is
            estimated from chains, data per step and parameters, so that it is the same whenever the run goes on.
    """
    if threads is not None:
        return threads
    dim, reads = method.target.dim, method.kernel.reads(method.target)
    seconds = method.shape.chains * (reads * (_DATUM + _PARAMETER * dim) + _PASS * dim)
    return usable_cores() if seconds > _PAYS else 1


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Let torch work with so many threads, and with as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
