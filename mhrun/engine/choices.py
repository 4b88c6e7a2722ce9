"""Settings that affect the rounding of a method's steps; recorded, so that a resumed run continues identically."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from mhrun.store.files import read_json, write_json
from mhrun.store.sharing import EXECUTOR


class Choices(NamedTuple):
    """The choices that a method began with; None where it has not begun, or where there is nothing to choose."""

    executor: str | None = None
    torch_threads: int | None = None
    evaluation: str | None = None  # of a module: bound, vmapped or compiled


def recorded_choices(folder: Path) -> Choices:
    """Return the choices that the folder of a method has.

    A record without a block is of a run that was stopped before its first steps, and does not count.
    """
    if not any((folder / "blocks").glob("*.npz")):
        return Choices()
    record = read_json(folder / EXECUTOR) or {}
    return Choices(*(record.get(name) for name in Choices._fields))


def record_choices(folder: Path, choices: Choices) -> None:
    """Write the choices into the folder of a method."""
    write_json(
        folder / EXECUTOR, {name: value for name, value in choices._asdict().items() if value is not None}
    )
