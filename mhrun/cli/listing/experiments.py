"""``mhrun list``: experiments, their papers and their runs, or methods. Needs neither torch nor Hydra."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from mhrun.cli.exit_status import OK
from mhrun.cli.listing.methods import METHODS, show_methods
from mhrun.cli.listing.outline import Outline, outline, paper, seconds_at_paper_scale
from mhrun.cli.listing.run_status import NO_LIMIT, columns, status_of
from mhrun.cli.places import experiments, outputs_of
from mhrun.durations import describe_duration
from mhrun.errors import UserError, cut, nearest
from mhrun.paths import CONF
from mhrun.report.claims.recorded import RecordedResult, recorded_results
from mhrun.store.folder import RunFolder, runs

_NAME, _TIME, _RECORDED = 25, 7, 8  # widths of columns
_NOT_RUN = "not run"
_END = """\
mhrun NAME runs an experiment.
mhrun list NAME shows its methods, settings, claims and runs.
mhrun list methods shows all methods.
time: of the methods at scale=paper on two cores of an AMD EPYC;
      scale=quick, the default, takes a minute or two on most
"""
_END_RECORDED = """\
recorded: claims reproduced by the project's runs at scale=paper (docs/results)
yours: your newest run
"""


def show_list(arguments: Sequence[str], folders: Sequence[Path]) -> int:
    """Print the list; ``runtime.outputs=FOLDER`` is the folder of the runs.

    Raises:
        UserError: an unknown argument, or an experiment's file that cannot be read.
    """
    outputs, names = outputs_of(arguments)
    paths, run_folders = experiments(folders), runs(outputs)
    # Runs of projects that are not given on this command line.
    other_names = dict.fromkeys(folder.experiment for folder in run_folders if folder.experiment not in paths)
    if names == [METHODS] and METHODS not in {**paths, **other_names}:
        show_methods(folders)
        return OK
    for name in names:
        if name not in paths and name not in other_names:
            raise UserError(f"There is no experiment '{name}'.{nearest(name, [*paths, *other_names])}")
    if names:
        from mhrun.cli.listing.experiment import show_experiment

        for name in dict.fromkeys(names):
            show_experiment(
                name, paths.get(name), [run for run in run_folders if run.experiment == name], folders
            )
        return OK
    heads = {name: outline(path) for name, path in paths.items()}
    table = _Table(heads, paths, run_folders)
    if table.recorded:
        print(table.heading())
    for title, group in _by_paper(heads, paths):
        print(cut(title, table.columns))
        for name in group:
            print(table.row(name))
        print()
    if other_names:
        print("Of other projects")
        for name in sorted(other_names):
            print(table.row(name))
        print()
    print(_END + _END_RECORDED if table.recorded else _END, end="")
    return OK


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


class _Table:
    """The lines of experiments: name, time at the paper's scale, recorded claims, newest run, and title.

    Args:
        heads: experiment -> the outline in its file.
        paths: experiment -> its file.
        run_folders: the runs, by time.
    """

    def __init__(
        self, heads: dict[str, Outline], paths: dict[str, Path], run_folders: Sequence[RunFolder]
    ) -> None:
        self.heads = heads
        newest = {folder.experiment: status_of(folder) for folder in run_folders}
        self.statuses = {name: f"{run.scale} {run.status}" for name, run in newest.items()}
        self.recorded = _recorded_counts(heads, paths)
        self.columns = columns()
        self.status_width = max(map(len, [_NOT_RUN, *self.statuses.values()]))

    def heading(self) -> str:
        """Return the names of the columns."""
        recorded, yours = f"{'recorded':>{_RECORDED}}", f"{'yours':{self.status_width}}"
        return cut(f"{'experiment':{_NAME + 2}} {'time':>{_TIME}}  {recorded}  {yours}  title", self.columns)

    def row(self, name: str) -> str:
        """Return the line of an experiment."""
        head = self.heads.get(name)
        title = head.title if head else ""
        if self.columns == NO_LIMIT and head and head.reproduces:
            title += f" [{head.reproduces}]"
        seconds = seconds_at_paper_scale().get(name)
        time = "" if seconds is None else describe_duration(seconds)
        start = f"  {name:{_NAME}} {time:>{_TIME}}  "
        if self.recorded:
            start += f"{self.recorded.get(name, ''):>{_RECORDED}}  "
        start += f"{self.statuses.get(name, _NOT_RUN):{self.status_width}}  "
        return f"{start}{cut(title, max(self.columns - len(start), 12))}".rstrip()


def _recorded_counts(heads: dict[str, Outline], paths: dict[str, Path]) -> dict[str, str]:
    """Return the recorded claims of mhrun's experiments and their sweeps: "23 of 24" are reproduced."""
    results: dict[str, list[RecordedResult]] = {}
    for key in {heads[name].paper for name, path in paths.items() if path.parent.parent == CONF}:
        for (_, name), result in recorded_results(key).items():
            results.setdefault(name, []).append(result)
    counts = {
        name: [sum(result.counts[i] for result in found) for i in (0, 1)] for name, found in results.items()
    }
    return {name: f"{reproduced} of {total}" for name, (reproduced, total) in counts.items() if total}
