"""What a run was computed with."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from mhrun import __version__
from mhrun.engine.drivers import usable_cores
from mhrun.paths import PACKAGE


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Return a digest of the package's source: what code the numbers come from."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str]:
    """Return the versions that decide numbers."""
    found = {"mhrun": __version__, "source": source_digest(), "python": platform.python_version()}
    for name in ("torch", "numpy", "numba", "hydra-core", "xarray"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def machine(device: str) -> dict[str, Any]:
    """Return the machine, in words."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].split(":", 1)[1].strip() if lines else name
    found: dict[str, Any] = {
        "cpu": name,
        "cores": usable_cores(),
        "system": platform.system(),
        "device": device,
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name(device)
    return found
