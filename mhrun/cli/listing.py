"""``mhrun list``: the experiments, what they reproduce, and what has been run. Needs neither torch nor Hydra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filelock

from mhrun import yaml_file
from mhrun.cli.places import experiments, outputs_of
from mhrun.errors import UserError, nearest
from mhrun.store.folder import RunFolder, runs


def show_list(words: Sequence[str], folders: Sequence[Path]) -> int:
    """Print the list; ``runtime.outputs=FOLDER`` is where runs are searched.

    Raises:
        UserError: a word that means nothing here, or an experiment's file that cannot be read.
    """
    outputs, names = outputs_of(words)
    there = experiments(folders)
    others = {folder.experiment for folder in runs(outputs)} - set(
        there
    )  # of projects that are not named here
    for name in names:
        if name not in there and name not in others:
            raise UserError(f"There is no experiment '{name}'.{nearest(name, [*there, *others])}")
    for name, path in there.items():
        if names and name not in names:
            continue
        head = _head(path)
        print(name)
        print(f"    {head.get('title', '')}")
        if head.get("reproduces"):
            print(f"    reproduces {head['reproduces']}")
        found = runs(outputs, name)
        for folder in found:
            print(f"    {_line(folder)}")
        if not found:
            print(f"    not run yet: mhrun experiment={name}")
    for name in sorted(others & set(names) if names else others):
        print(name)
        for folder in runs(outputs, name):
            print(f"    {_line(folder)}")
    return 0


def _line(folder: RunFolder) -> str:
    summary = folder.summary() or {}
    status = summary.get("status", "damaged" if folder.has_damaged_summary() else "begun")
    if status == "running" and not _held(folder):
        status = "interrupted"
    given = ("reproduced", "not reproduced")
    judged = [c["verdict"] for c in summary.get("claims", []) if c["verdict"] in given]
    verdicts = f", {judged.count('reproduced')} of {len(judged)} claims reproduced" if judged else ""
    when = str(summary.get("finished") or summary.get("started") or "")[:16].replace("T", " ")
    page = folder.report / "index.html"
    where = page if page.exists() else folder.path
    return f"{folder.digest}  {summary.get('scale', '?'):6}{status:12}{when}{verdicts}  {_short(where)}"


def _held(folder: RunFolder) -> bool:
    """Say whether a process has the folder: the system drops the lock of one that dies, however it dies."""
    lock = folder.path / ".lock"
    if not lock.exists():
        return False
    try:
        with filelock.FileLock(lock).acquire(timeout=0):
            return False
    except (filelock.Timeout, OSError):  # where we may not lock, it is unknown
        return True


def _head(path: Path) -> dict[str, Any]:
    """Return what an experiment's file says, unresolved."""
    head = yaml_file.load(path) or {}
    if not isinstance(head, dict):
        raise UserError(f"'{path}' holds no settings (KEY: VALUE); mend it.")
    return head


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
