"""``mhrun list``: experiments, their papers and their runs. Needs neither torch nor Hydra."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mhrun.cli.outline import Outline, outline, paper, seconds_at_paper_scale
from mhrun.cli.places import experiments, outputs_of
from mhrun.cli.run_status import NO_LIMIT, columns, status_of
from mhrun.durations import in_words
from mhrun.errors import UserError, cut, nearest
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
    paths, run_folders = experiments(folders), runs(outputs)
    # Runs of projects that are not given on this command line.
    other_names = dict.fromkeys(folder.experiment for folder in run_folders if folder.experiment not in paths)
    for name in names:
        if name not in paths and name not in other_names:
            raise UserError(f"There is no experiment '{name}'.{nearest(name, [*paths, *other_names])}")
    if names:
        from mhrun.cli.listing_one import show_experiment

        for name in dict.fromkeys(names):
            show_experiment(
                name, paths.get(name), [run for run in run_folders if run.experiment == name], folders
            )
        return 0
    width = columns()
    heads = {name: outline(path) for name, path in paths.items()}
    for title, group in _by_paper(heads, paths):
        print(title)
        for name in group:
            experiment_runs = [run for run in run_folders if run.experiment == name]
            print(_row(name, heads[name], experiment_runs, width))
        print()
    if other_names:
        print("Of other projects")
        for name in sorted(other_names):
            print(_row(name, None, [run for run in run_folders if run.experiment == name], width))
        print()
    print(_END, end="")
    return 0


def _by_paper(heads: dict[str, Outline], paths: dict[str, Path]) -> Iterable[tuple[str, list[str]]]:
    """Yield headings and names: the user's experiments, those of each paper, and the others."""
    user_names = sorted(name for name, path in paths.items() if path.parent.parent != CONF)
    if user_names:
        yield "Your own", user_names
    rest = [name for name in heads if name not in user_names]
    keys = sorted({heads[name].paper for name in rest}, key=lambda key: (paper(key) is None, key))
    for key in keys:
        publication = paper(key)
        title = f"{publication.cited}: {publication.title}" if publication else "Beyond the papers"
        yield title, sorted(name for name in rest if heads[name].paper == key)


def _row(name: str, head: Outline | None, run_folders: list[RunFolder], width: int) -> str:
    """Return a line: name, time at the paper's scale, status of its newest run, and title."""
    title = head.title if head else ""
    if width == NO_LIMIT and head and head.reproduces:
        title += f" [{head.reproduces}]"
    seconds = seconds_at_paper_scale().get(name)
    time = "" if seconds is None else in_words(seconds)
    newest = status_of(run_folders[-1]) if run_folders else None
    status = f"{newest.scale} {newest.status}" if newest else "not run"
    start = f"  {name:{_NAME}} {time:>{_TIME}}  {status:{_STATUS}} "
    return f"{start} {cut(title, max(width - len(start) - 1, 12))}".rstrip()
