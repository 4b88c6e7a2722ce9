"""More steps: a method goes on where a run of it with fewer steps ended.

A finished method keeps the state after its last step, ``last.npz``. One with more steps begins with this state as its
first block, whose draws are in the trace of the shorter run (``blocks/shorter.nc``); from there on it is a method that
was interrupted, and resumes like any other. `mhrun.engine.longer` decides whether the first steps of both are the same.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mhrun.errors import UserError
from mhrun.store.blocks import DONE, LAST, SHORTER, SHORTER_DIGEST, block_name, damage, load_block
from mhrun.store.checksums import file_digest
from mhrun.store.files import remove, write_whole
from mhrun.store.folder import RunFolder
from mhrun.store.netcdf import TRACE
from mhrun.store.sharing import EXECUTOR, PILOT, REFERENCE, finished, link, others


class Shorter(NamedTuple):
    """A finished method with fewer steps."""

    folder: Path
    steps: int  # after burn-in


def shorter_runs(folder: RunFolder, name: str, digest: str, steps: int) -> list[Shorter]:
    """Return where runs of the same experiment have this method with fewer steps, the longest first.

    Args:
        folder: the run that needs it.
        name: the method's name.
        digest: of the method without its number of steps.
        steps: the number that is needed, after burn-in.
    """
    found = []
    for source in others(folder, name):
        with suppress(UserError):  # one that cannot be read is of no use
            record = finished(source)
            if record.any_steps_digest == digest and record.steps < steps:
                found.append(Shorter(source, record.steps))
    return sorted(found, key=lambda shorter: -shorter.steps)


def begin_longer(target: Path, source: Path, total: int) -> bool:
    """Put a finished method with fewer steps into the folder `target` as the beginning of one with more.

    Both may be the same folder. A kill leaves what was there before, or the whole beginning.

    Args:
        target: the folder of the longer method, which has not begun unless it is `source`.
        source: the folder of the finished one.
        total: its steps, burn-in included.

    Returns:
        Whether it was possible: the state after the last step is there, and nothing is damaged.

    Raises:
        UserError: the folder cannot be written.
    """
    last = load_block(source / LAST)
    if last is None or damage(source) is not None:
        return False
    partial = target / "blocks.partial" if source == target else target.with_name(f".{target.name}.partial")
    try:
        remove(partial)
        blocks = partial if source == target else partial / "blocks"
        blocks.mkdir(parents=True)
        link(source / TRACE, blocks / SHORTER)
        digest = np.frombuffer(bytes.fromhex(file_digest(blocks / SHORTER)), np.uint8)
        first = blocks / block_name(1, total + 1)
        write_whole(first, lambda file: np.savez(file, **last, **{SHORTER_DIGEST: digest}))  # type: ignore[arg-type]
        if source == target:
            remove(target / "blocks")
            partial.rename(target / "blocks")
        else:
            for name in (EXECUTOR, PILOT, REFERENCE):
                if (source / name).is_file():
                    link(source / name, partial / name)
            remove(target)  # it may have the record of an executor
            partial.rename(target)
    except OSError:
        return False
    finally:
        with suppress(OSError, UserError):
            remove(partial)
    return True


def can_go_on(folder: Path) -> bool:
    """Return whether a folder has the state after the last step of its finished method."""
    return (folder / LAST).is_file()


def forget_shorter(folder: Path) -> None:
    """Remove the results of a method with fewer steps, which its folder has as the beginning of one with more.

    Raises:
        UserError: they cannot be removed.
    """
    for name in (DONE, TRACE, LAST):
        remove(folder / name)
