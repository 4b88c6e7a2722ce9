"""Versions and machine of a run."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import platform
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_info

from mhrun import __version__
from mhrun.cores import cpu_name, usable_cores
from mhrun.paths import PACKAGE

_TRIM, _PAD, _MAP = -1, -2, -3  # M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD of glibc's malloc.h


@lru_cache(maxsize=1)
def keep_memory() -> None:
    """Make glibc keep the memory of freed large tensors; with other C libraries do nothing.

    By default it returns blocks of megabytes to the system immediately, and each step of a wide model maps and clears
    them again, in a tenth to a quarter of the step's time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    for setting, value in ((_MAP, 32 << 20), (_TRIM, (1 << 31) - 1), (_PAD, 64 << 20)):
        mallopt(setting, value)


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Return a digest of the package's source."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def versions() -> dict[str, str]:
    """Return the versions on which numbers depend."""
    version_of = {"mhrun": __version__, "source": source_digest(), "python": platform.python_version()}
    for name in ("torch", "numpy", "numba", "hydra-core", "xarray"):
        try:
            version_of[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version_of[name] = "absent"
    return version_of


def matrix_products() -> str:
    """Return the libraries of NumPy's and SciPy's matrix products, each with the processors its kernels are for.

    OpenBLAS chooses kernels by the processor, unless `OPENBLAS_CORETYPE` is set; products take up to twice as long with
    others, and round differently. A library that threadpoolctl does not know, such as Accelerate of macOS, has the name
    that NumPy was built with.
    """
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    words = ("internal_api", "version", "architecture")
    names = {" ".join(str(library[w]) for w in words if library.get(w)) for library in libraries}
    return ", ".join(sorted(names)) or _built_with()


def _built_with() -> str:
    dependencies = np.show_config(mode="dicts").get("Build Dependencies", {})
    return str(dependencies.get("blas", {}).get("name", ""))


def machine(device: str) -> dict[str, Any]:
    """Return a description of the machine."""
    description: dict[str, Any] = {
        "cpu": cpu_name(),
        "matrix_products": matrix_products(),
        "cores": usable_cores(),
        "system": platform.system(),
        "device": device,
    }
    if device.startswith("cuda"):
        description["gpu"] = torch.cuda.get_device_name(device)
    return description
