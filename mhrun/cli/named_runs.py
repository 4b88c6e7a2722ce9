"""Finds runs by folder, by experiment, or by the beginning of a digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mhrun.errors import UserError, nearest
from mhrun.paths import user_folders
from mhrun.store.folder import RunFolder, runs
from mhrun.store.netcdf import TRACE
from mhrun.store.projects import shown


def found_run(argument: str, outputs: Path) -> tuple[RunFolder, str | None]:
    """Return the run named by an argument, and the method after its colon, None without one.

    A run is a folder, an experiment (its newest complete run), or the beginning of a digest, with or without the
    experiment's name and a slash before it.

    Raises:
        UserError: no run, or several, match, or the newest run of an experiment lacks the method and another has it.
    """
    for text, method in ((argument, None), (argument.rpartition(":")[0], argument.rpartition(":")[2])):
        if text and (folder := run_at(text, outputs)) is not None:
            if method and text == folder.experiment:
                _check_method(method, folder, outputs)
            return folder, method or None
    for text in (argument, argument.rpartition(":")[0]):
        if text and (Path(text) / TRACE).is_file():
            raise UserError(
                f"{text!r} holds a trace of mhrun.sample, not a run; compare it from Python, by mhrun.compare."
            )
        if text and Path(text).is_dir():
            raise UserError(
                f"{text!r} is not a run: it has no config.yaml. If it was one, the command of the run makes it again."
            )
    names = {folder.experiment for folder in runs(outputs)}
    name = argument.partition(":")[0]
    raise UserError(
        f"{argument!r} is not a run: no folder, no experiment that has run, no beginning of a digest in {outputs}."
        f"{nearest(name, names)} mhrun list shows the runs."
    )


def run_at(text: str, outputs: Path) -> RunFolder | None:
    """Return the run that an argument names, see `found_run`, or None.

    Projects from tables of one name share the name of their experiment: runs of the project on the command line come
    before those of others.

    Raises:
        UserError: it is the beginning of several digests.
    """
    folder = Path(text)
    if (folder / "config.yaml").is_file():
        return RunFolder(folder.resolve() if folder.is_symlink() else folder)
    experiment, _, digest = text.rpartition("/")
    folders = runs(outputs)
    if not experiment and (of_name := [r for r in folders if r.experiment == text]):
        folders_of_user = user_folders()
        of_project = [r for r in of_name if folders_of_user and r.projects() == folders_of_user]
        return _newest(of_project or of_name)
    matches = [r for r in folders if r.digest.startswith(digest) and experiment in ("", r.experiment)]
    if len(digest) < 4 or not matches:
        return None
    if len(matches) > 1:
        raise UserError(
            f"{text!r} is the beginning of several runs: {', '.join(str(r.path) for r in matches)}."
        )
    return matches[0]


def _newest(folders: Sequence[RunFolder]) -> RunFolder:
    """Return the complete run that finished last, else the one that did; of the same second by the time of its file."""

    def ended(folder: RunFolder) -> tuple[str, int]:
        file = folder.path / "summary.json"
        written = file.stat().st_mtime_ns if file.is_file() else 0
        return str((folder.summary() or {}).get("finished") or ""), written

    complete = [folder for folder in folders if folder.is_complete()]
    return max(complete or folders, key=ended)


def _check_method(method: str, newest: RunFolder, outputs: Path) -> None:
    """Refuse a method that the newest run of an experiment lacks and another of its runs has.

    Raises:
        UserError: only another run, perhaps of another project, has the method.
    """
    methods = (newest.summary() or {}).get("methods", {})
    if method in methods or not newest.is_complete():
        return
    others = [r for r in runs(outputs, newest.experiment) if r.is_complete()]
    others = [r for r in others if method in (r.summary() or {}).get("methods", {})]
    if not others:
        return
    other = _newest(others)
    mine, its = newest.projects(), other.projects()
    is_of_another = bool(mine and its) and mine != its
    has = f"has no method '{method}'; it has {', '.join(methods)}."
    if not is_of_another:
        raise UserError(
            f"{newest.path}, the newest run of {newest.experiment}, {has} {other.path} has {method}: give that folder "
            f"in place of {newest.experiment}."
        )
    raise UserError(
        f"{newest.path}, the newest run of {newest.experiment}, is of project {shown(mine)} and {has} {other.path} of "
        f"project {shown(its)} has {method}: add --project {shown(its[:1])}, or give the folder."
    )
