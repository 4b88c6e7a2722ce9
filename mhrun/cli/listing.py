"""``mhrun list``: the experiments, what they reproduce, and what has been run. Needs neither torch nor Hydra."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import filelock

from mhrun.cli.outline import Outline, outline, paper, seconds_at_paper_scale
from mhrun.cli.places import experiments, outputs_of
from mhrun.durations import in_words
from mhrun.errors import UserError, nearest
from mhrun.paths import CONF
from mhrun.store.folder import RunFolder, runs

_NAME, _TIME, _STATUS = 25, 7, 14  # characters of columns
_NO_LIMIT = 100_000  # columns of what is no terminal
_END = """\
mhrun NAME runs an experiment. mhrun list NAME shows its methods, settings, claims and runs.
Times: methods at scale=paper on two cores of an AMD EPYC. scale=quick, the default, takes a minute or two on most.
"""


def show_list(words: Sequence[str], folders: Sequence[Path]) -> int:
    """Print the list; ``runtime.outputs=FOLDER`` is where runs are searched.

    Raises:
        UserError: a word that means nothing here, or an experiment's file that cannot be read.
    """
    outputs, names = outputs_of(words)
    there, found = experiments(folders), runs(outputs)
    # Runs of projects that are not named here.
    others = dict.fromkeys(folder.experiment for folder in found if folder.experiment not in there)
    for name in names:
        if name not in there and name not in others:
            raise UserError(f"There is no experiment '{name}'.{nearest(name, [*there, *others])}")
    if names:
        from mhrun.cli.listing_one import show_experiment

        for name in dict.fromkeys(names):
            show_experiment(name, there.get(name), [run for run in found if run.experiment == name], folders)
        return 0
    width = columns()
    heads = {name: outline(path) for name, path in there.items()}
    for title, group in _by_paper(heads, there):
        print(title)
        for name in group:
            ours = [run for run in found if run.experiment == name]
            print(_row(name, heads[name], ours, width))
        print()
    if others:
        print("Of other projects")
        for name in sorted(others):
            print(_row(name, None, [run for run in found if run.experiment == name], width))
        print()
    print(_END, end="")
    return 0


def columns() -> int:
    """Return how many characters a line may have: those of the terminal, or as many as it takes."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _NO_LIMIT


def _by_paper(heads: dict[str, Outline], there: dict[str, Path]) -> Iterable[tuple[str, list[str]]]:
    """Yield a heading and names: the user's own experiments, those of each paper, and those beyond the papers."""
    own = sorted(name for name, path in there.items() if path.parent.parent != CONF)
    if own:
        yield "Your own", own
    rest = [name for name in heads if name not in own]
    keys = sorted({heads[name].paper for name in rest}, key=lambda key: (paper(key) is None, key))
    for key in keys:
        about = paper(key)
        title = f"{about.cited}: {about.title}" if about else "Beyond the papers"
        yield title, sorted(name for name in rest if heads[name].paper == key)


def _row(name: str, head: Outline | None, found: list[RunFolder], width: int) -> str:
    """Return a line: name, time at the paper's scale, where its newest run stands, and title."""
    title = head.title if head else ""
    if width == _NO_LIMIT and head and head.reproduces:
        title += f" [{head.reproduces}]"
    seconds = seconds_at_paper_scale().get(name)
    time = "" if seconds is None else in_words(seconds)
    newest = status_of(found[-1]) if found else None
    status = f"{newest.scale} {newest.status}" if newest else "not run"
    start = f"  {name:{_NAME}} {time:>{_TIME}}  {status:{_STATUS}} "
    return f"{start} {cut(title, max(width - len(start) - 1, 12))}".rstrip()


def cut(text: str, most: int) -> str:
    """Return a text of at most `most` characters, ending in ... where it was longer."""
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."


class Status(NamedTuple):
    """Where a run stands."""

    scale: str
    status: str
    when: str  # it ended, or began
    claims: tuple[int, int]  # reproduced, of those judged
    seconds: float | None  # from its beginning to its end

    @property
    def verdicts(self) -> str:
        """How many claims are reproduced; empty where none is judged."""
        return f"{self.claims[0]} of {self.claims[1]} claims reproduced" if self.claims[1] else ""


def status_of(folder: RunFolder) -> Status:
    """Return where a run stands."""
    summary = folder.summary() or {}
    status = str(summary.get("status", "damaged" if folder.has_damaged_summary() else "begun"))
    if status == "running" and not _held(folder):
        status = "interrupted"
    when = str(summary.get("finished") or summary.get("started") or "")[:16].replace("T", " ")
    given = ("reproduced", "not reproduced")
    judged = [claim["verdict"] for claim in summary.get("claims", []) if claim["verdict"] in given]
    took = _seconds(summary.get("started"), summary.get("finished"))
    return Status(
        str(summary.get("scale", "?")), status, when, (judged.count("reproduced"), len(judged)), took
    )


def _seconds(began: object, ended: object) -> float | None:
    try:
        return (datetime.fromisoformat(str(ended)) - datetime.fromisoformat(str(began))).total_seconds()
    except (ValueError, TypeError):
        return None


def _held(folder: RunFolder) -> bool:
    """Return whether a process has the folder: the system drops the lock of one that dies, however it dies."""
    lock = folder.path / ".lock"
    if not lock.exists():
        return False
    try:
        with filelock.FileLock(lock).acquire(timeout=0):
            return False
    except (filelock.Timeout, OSError):  # where we may not lock, it is unknown
        return True
