"""The disk space that methods need, and whether there is enough."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mhrun.data.memory import in_bytes
from mhrun.engine.method import Method
from mhrun.errors import UserError
from mhrun.store.blocks import done
from mhrun.types import INFO_DTYPES

_ANNOUNCED_BYTES = 1e9  # bytes of a method's draws that are announced


def check_space(methods: list[Method], folder: Path, *, force: bool = False) -> None:
    """Refuse a run that the disk cannot hold.

    Args:
        methods: of the run.
        folder: of the run; methods that are done there write nothing more.
        force: whether all are run again, in place of what is there.

    Raises:
        UserError: the free space is smaller than the traces may need.
    """
    need = 0
    for method in methods:
        method_folder = folder / "methods" / method.name
        if force or not _is_done(method_folder):
            need += max(0, trace_bytes(method) - sum(map(_size_of, method_folder.glob("**/*"))))
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    if need > free:
        raise UserError(
            f"The traces may need {in_bytes(need)} and '{existing}' has {in_bytes(free)} free; "
            "free some space, raise thin, or choose another disk with runtime.outputs=FOLDER."
        )


def _size_of(path: Path) -> int:
    """Return the bytes of a file; 0 of a folder, and of one that another process has removed meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _is_done(method_folder: Path) -> bool:
    """Return whether a method is done; False if its record cannot be read, so that it will be run again."""
    try:
        return done(method_folder) is not None
    except UserError:
        return False


def trace_bytes(method: Method) -> int:
    """Return the maximal disk space of a method: its blocks and its trace, uncompressed."""
    shape, per_step = method.shape, sum(np.dtype(dtype).itemsize for dtype in INFO_DTYPES.values())
    per_chain = 8 * max(method.target.width, len(shape.parameters)) * len(shape.kept(1, shape.total))
    state = 3 * 2 * 8 * method.target.dim  # state in the last blocks: theta, and a gradient or a momentum
    return shape.chains * state + 2 * shape.chains * (
        per_chain + per_step * (shape.total // shape.stats_thin)
    )


def large_draws(methods: Sequence[Method]) -> list[str]:
    """Return a line for each method whose draws after burn-in take more than 1 GB, with a `thin` that keeps less."""
    lines = []
    for method in methods:
        shape, thin = method.shape, method.shape.thin
        if not isinstance(thin, int):
            continue
        of_step = 8 * shape.chains * max(method.target.width, len(shape.parameters))
        need = of_step * (shape.steps // thin)
        if need > _ANNOUNCED_BYTES:
            steps = (k * 10**power for power in range(12) for k in (1, 2, 5))
            enough = next(k for k in steps if of_step * (shape.steps // k) <= _ANNOUNCED_BYTES)
            advice = (
                f"thin={enough} keeps {in_bytes(of_step * (shape.steps // enough))}, and all statistics with "
                f"thin_stats={shape.stats_thin}"
                if enough <= shape.steps
                else "thin=null keeps none, where a monitor has what is wanted"
            )
            lines.append(f"{method.name}: its draws take up to {in_bytes(need)}; {advice}.")
    return lines
