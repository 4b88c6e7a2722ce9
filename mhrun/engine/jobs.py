"""How many methods of a run are computed concurrently (``runtime.jobs``)."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mhrun.cores import usable_cores
from mhrun.data.memory import available
from mhrun.engine.cost import step_seconds
from mhrun.engine.execution.threads import torch_threads
from mhrun.engine.method import Method
from mhrun.engine.settings import HELD_BYTES, Settings

_PAYS = 20.0  # guessed seconds of all methods in torch; a worker takes two to start
_SAMPLE = 0.2  # seconds in which the load of the cores is measured
_NEARLY = 0.25  # of a core may be busy with other things
_PROCESS = 1 << 30  # bytes of a worker besides its data and its draws


def separable(methods: Sequence[Method], threads: int | None) -> list[Method]:
    """Return the methods that a worker may run: on a CPU, with the torch threads that they have in the run itself.

    Sums over several threads round differently, so a method whose steps pay for all cores keeps them.
    """
    return [
        method
        for method in methods
        if method.target.device.type == "cpu" and (threads is not None or torch_threads(method, None) == 1)
    ]


def jobs_of(chosen: int | None, methods: Sequence[Method], settings: Settings) -> int:
    """Return how many worker processes run these methods; 1: none, the run does it itself.

    Args:
        chosen: by the user; None: as many as there are idle cores, methods, and memory for them, if the work pays for
            starting them.
        methods: that are not finished.
        settings: how each of them runs.
    """
    most = len(methods)
    if os.name != "posix" or most < 2:
        return 1
    if chosen is not None:
        return min(chosen, most)
    cores = usable_cores() // (settings.threads or 1)
    if cores < 2 or sum(step_seconds(method) * method.shape.total for method in methods) < _PAYS:
        return 1
    need = _PROCESS + HELD_BYTES + 2 * max(map(_data_bytes, methods))
    return max(1, min(most, cores, int(available() // need), int(idle_cores() / (settings.threads or 1))))


def _data_bytes(method: Method) -> int:
    return sum(value.numel() * value.element_size() for value in method.target.data.fields.values())


def idle_cores() -> float:
    """Return how many of the cores that this process may use are idle now.

    Measured for a fifth of a second, in which this process sleeps; a core that is idle for three quarters of it counts.
    """
    before = _ticks()
    if not before:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
        return max(0.0, usable_cores() - load)
    time.sleep(_SAMPLE)
    shares = []
    for core, (idle, total) in _ticks().items():
        was_idle, was_total = before.get(core, (0, 0))
        if total > was_total:
            shares.append((idle - was_idle) / (total - was_total))
    return float(min(usable_cores(), int(sum(shares) + _NEARLY)))


def _ticks() -> dict[int, tuple[int, int]]:
    """Return the idle and all clock ticks of each usable core since the machine started; nothing where unknown."""
    if not sys.platform.startswith("linux"):
        return {}
    usable = os.sched_getaffinity(0)
    cores = {}
    try:
        for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines():
            name, *counts = line.split()
            if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in usable:
                ticks = [int(count) for count in counts[:8]]
                cores[int(name[3:])] = ticks[3] + ticks[4], sum(ticks)  # idle, and waiting for the disk
    except (OSError, ValueError, IndexError):
        return {}
    return cores
