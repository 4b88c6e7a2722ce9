"""``mhrun list``: experiments, their papers and their runs. Needs neither torch nor Hydra."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mhrun.cli.outline import Outline, outline, paper, seconds_at_paper_scale
from mhrun.cli.places import experiments, outputs_of
from mhrun.cli.run_status import NO_LIMIT, columns, cut, status_of
from mhrun.durations import in_words
from mhrun.errors import UserError, nearest
from mhrun.paths import CONF
from mhrun.store.folder import RunFolder, runs

_NAME, _TIME, _STATUS = 25, 7, 14  # widths of columns
_END = """\
mhrun NAME runs an experiment. mhrun list NAME shows its methods, settings, claims and runs.
Times: methods at scale=paper on two cores of an AMD EPYC. scale=quick, the default, takes a minute or two on most.
"""


def show_list(words: Sequence[str], folders: Sequence[Path]) -> int:
    """Print the list; ``runtime.outputs=FOLDER`` is the folder of the runs.

    Raises:
        UserError: an unknown word, or an experiment's file that cannot be read.
    """
    outputs, names = outputs_of(words)
    there, found = experiments(folders), runs(outputs)
    # Runs of projects that are not given on this command line.
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


def _by_paper(heads: dict[str, Outline], there: dict[str, Path]) -> Iterable[tuple[str, list[str]]]:
    """Yield headings and names: the user's experiments, those of each paper, and the others."""
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
    """Return a line: name, time at the paper's scale, status of its newest run, and title."""
    title = head.title if head else ""
    if width == NO_LIMIT and head and head.reproduces:
        title += f" [{head.reproduces}]"
    seconds = seconds_at_paper_scale().get(name)
    time = "" if seconds is None else in_words(seconds)
    newest = status_of(found[-1]) if found else None
    status = f"{newest.scale} {newest.status}" if newest else "not run"
    start = f"  {name:{_NAME}} {time:>{_TIME}}  {status:{_STATUS}} "
    return f"{start} {cut(title, max(width - len(start) - 1, 12))}".rstrip()
