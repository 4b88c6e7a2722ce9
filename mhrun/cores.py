"""The cores that this process may use."""

from __future__ import annotations

import os

CORES = "MHRUN_CORES"
"""The environment variable with the most cores that this process uses: jobs of a sweep divide those of a machine."""


def usable_cores() -> int:
    """Return the number of cores available to this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    setting = os.environ.get(CORES, "")
    return max(1, min(cores, int(setting))) if setting.isdecimal() else cores
