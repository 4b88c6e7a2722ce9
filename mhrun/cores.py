"""The name of the processor, and the cores that this process may use."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import lru_cache
from pathlib import Path

CORES = "MHRUN_CORES"
"""The environment variable with the most cores that this process uses: jobs of a sweep divide those of a machine."""


def usable_cores() -> int:
    """Return the number of cores available to this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    setting = os.environ.get(CORES, "")
    return max(1, min(cores, int(setting))) if setting.isdecimal() else cores


@lru_cache(maxsize=1)
def cpu_name() -> str:
    """Return the name of the processor, or of its architecture if the system does not report it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else _brand() or platform.processor() or platform.machine()


def _brand() -> str:
    """Return the name that macOS has of the processor, whose name is "arm" to Python; elsewhere an empty string."""
    text = ctypes.create_string_buffer(256)
    size, none = ctypes.c_size_t(len(text)), ctypes.c_size_t(0)
    try:
        read = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError, TypeError):
        return ""
    failed = read(b"machdep.cpu.brand_string", text, ctypes.byref(size), None, none)
    return "" if failed else text.value.decode(errors="replace").strip()
