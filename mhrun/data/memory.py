"""Available memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mhrun.errors import UserError

if sys.platform != "win32":
    import resource

_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_CGROUPS = (  # limit and use of the process's container, cgroup versions 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def in_bytes(count: float) -> str:
    """Return a number of bytes with a unit: 3.4 GB, 12 kB."""
    return next(
        (f"{count / size:.3g} {unit}" for unit, size in _UNITS if count >= size), f"{count:.0f} bytes"
    )


def available() -> float:
    """Return how many bytes of memory this process can still allocate; infinity if the system does not report it.

    The minimum of the machine's free memory, the rest of the container's limit, and the rest of the process's limit of
    address space (``ulimit -v``).
    """
    return min(_free(), default=float("inf"))


def check_memory(need: float, what: str, instead: str) -> None:
    """Raise an error if memory is insufficient.

    Args:
        need: bytes.
        what: what needs them, for the message.
        instead: what the user can do.

    Raises:
        UserError: fewer bytes are available.
    """
    if need > (free := available()):
        raise UserError(
            f"{what} would take {in_bytes(need)} of memory, and {in_bytes(free)} are free; {instead}."
        )


def _free() -> Iterator[float]:
    free_kb = _meminfo().get("MemAvailable")
    if free_kb is not None:
        yield 1024 * free_kb
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit, use in _CGROUPS:
        ceiling, used = _number(limit), _number(use)
        if ceiling is not None and used is not None:
            yield max(0, ceiling - used)
    if sys.platform != "win32":
        limited, _ = resource.getrlimit(resource.RLIMIT_AS)
        pages = _number("/proc/self/statm")
        if limited != resource.RLIM_INFINITY and pages is not None:
            yield max(0, limited - pages * resource.getpagesize())


def _meminfo() -> dict[str, int]:
    """Return Linux's memory statistics, in kB."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    except (OSError, ValueError, IndexError):
        return {}


def _number(file: str) -> int | None:
    """Return the first number in a system file, or None."""
    try:
        return int(Path(file).read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return None
