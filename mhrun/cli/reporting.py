"""``mhrun report``: rebuilds reports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from mhrun.cli.crash import crash_of, printable, show_traceback
from mhrun.cli.exit_status import BUG, FAILED, OK
from mhrun.cli.named_runs import run_at
from mhrun.cli.places import outputs_of
from mhrun.errors import UserError, is_of_launcher, is_out_of_memory, nearest
from mhrun.messages import say
from mhrun.store.folder import RunFolder, runs, sweeps
from mhrun.store.locks import held


def make_reports(arguments: Sequence[str]) -> int:
    """Rebuild the reports of all complete runs and sweeps, or of the named experiments, runs and sweeps.

    A report that fails prints one line, and the others are made. Returns 1 if a report, or a part of one, fails, or a
    run that is named itself is not complete; 70 if that is a bug in mhrun.
    """
    outputs, names = outputs_of(arguments)
    folders, places = chosen_runs(names, outputs)
    named = {found.path for name in names if (found := _named(name, outputs)) is not None}
    failures = _Failures()
    for folder in folders:
        skipped: list[bool] = []
        failures.of(
            folder.path,
            lambda folder=folder, skipped=skipped: skipped.append(not _of_run(folder, failures.add)),  # type: ignore[misc]
        )
        if folder.path in named and any(skipped):
            failures.status = max(failures.status, 1)
    for place in places:
        failures.of(place, lambda place=place: _of_sweep(place, failures.add))  # type: ignore[misc]
    return failures.status


def chosen_runs(names: Sequence[str], outputs: Path) -> tuple[list[RunFolder], list[Path]]:
    """Return the named runs and sweeps, or all: experiments, folders, or beginnings of digests of runs."""
    of_runs, of_sweeps = runs(outputs), sweeps(outputs)
    experiments = {folder.experiment for folder in of_runs} | {_experiment(place) for place in of_sweeps}
    if not names:
        if not experiments:
            raise UserError(f"There is no run in {outputs} yet; begin with mhrun experiment=NAME.")
        return of_runs, of_sweeps
    folders: list[RunFolder] = []
    places: list[Path] = []
    for name in names:
        if name in experiments:
            folders += [folder for folder in of_runs if folder.experiment == name]
            places += [place for place in of_sweeps if _experiment(place) == name]
        elif (Path(name) / "jobs").is_dir():
            places.append(Path(name))
        elif (folder := _named(name, outputs)) is not None:
            folders.append(folder)
        else:
            raise UserError(
                f"'{name}' is not an experiment with runs in {outputs}, the folder of a run or sweep, or the beginning "
                f"of a digest there.{nearest(name, experiments)}"
            )
    return folders, places


def _named(name: str, outputs: Path) -> RunFolder | None:
    """Return the run that is named by its folder or digest, not by its experiment; None if none is."""
    return None if name in {folder.experiment for folder in runs(outputs)} else run_at(name, outputs)


def _experiment(sweep: Path) -> str:
    return sweep.parent.parent.name


class _Failures:
    """Prints a line for each report, or part of one, that fails, and keeps the exit status."""

    def __init__(self) -> None:
        self.status = OK

    def add(self, line: str, status: int = FAILED) -> None:
        self.status = max(self.status, status)
        say(printable(line))

    def of(self, place: Path, make: Callable[[], None]) -> None:
        """Make a report; errors do not stop the others."""
        try:
            make()
        except BrokenPipeError:  # the output was closed
            raise
        except UserError as error:
            show_traceback(error)
            line = str(error)
            self.add(line if line.startswith(str(place)) else f"{place}: {line}")
        except (Exception, SystemExit) as error:
            if is_out_of_memory(error) or is_of_launcher(error):
                raise
            show_traceback(error)
            crash = crash_of(error)
            self.add(f"{place}: {crash.line}", FAILED if crash.of_user else BUG)


def _of_run(folder: RunFolder, warn: Callable[[str], None]) -> bool:
    """Make the report of a run, and return whether it has one: not if the run is not complete, or was changed."""
    from mhrun.report.build import build_report

    if folder.has_damaged_summary():
        raise UserError("summary.json is damaged; run the same command again to rewrite it.")
    if (reason := folder.incomplete()) is not None:
        print(f"skipped: {reason}", file=sys.stderr)
        return False
    built = build_report(folder, lambda message: print(message, file=sys.stderr, flush=True))
    print(f"report  {built.page}", flush=True)
    for line in built.failures:
        warn(line)
    for line in built.unknown_metrics:
        say(line)
    return True


def _of_sweep(place: Path, warn: Callable[[str], None]) -> None:
    from mhrun.report.sweep.build import build_sweep_report

    with held(place, "sweep", say):
        print(f"sweep   {build_sweep_report(place, warn)}", flush=True)
