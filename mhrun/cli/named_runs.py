"""Runs by what a user calls them: a folder, an experiment, the beginning of a digest."""

from __future__ import annotations

from pathlib import Path

from mhrun.errors import UserError, nearest
from mhrun.store.folder import RunFolder, runs
from mhrun.store.netcdf import TRACE


def found_run(word: str, outputs: Path) -> tuple[RunFolder, str | None]:
    """Return the run named by a word, and the method after its colon.

    A run is a folder, an experiment (its newest complete run), or the beginning of a digest, with or without the
    experiment's name and a slash before it.

    Raises:
        UserError: no run, or several, match.
    """
    for text, method in ((word, None), (word.rpartition(":")[0], word.rpartition(":")[2])):
        if text and (folder := run_at(text, outputs)) is not None:
            return folder, method or None
    for text in (word, word.rpartition(":")[0]):
        if text and (Path(text) / TRACE).is_file():
            raise UserError(
                f"'{text}' holds a trace of mhrun.sample, not a run; compare it from Python, by mhrun.compare."
            )
        if text and Path(text).is_dir():
            raise UserError(
                f"'{text}' is not a run: it has no config.yaml. If it was one, the command of the run makes it again."
            )
    names = {folder.experiment for folder in runs(outputs)}
    name = word.partition(":")[0]
    raise UserError(
        f"'{word}' is not a run: no folder, no experiment that has run, no beginning of a digest in {outputs}."
        f"{nearest(name, names)} mhrun list shows the runs."
    )


def run_at(text: str, outputs: Path) -> RunFolder | None:
    """Return the run that a word names, see `found_run`, or None.

    Raises:
        UserError: it is the beginning of several digests.
    """
    folder = Path(text)
    if (folder / "config.yaml").is_file():
        return RunFolder(folder.resolve() if folder.is_symlink() else folder)
    experiment, _, digest = text.rpartition("/")
    folders = runs(outputs)
    if not experiment and (of_name := [r for r in folders if r.experiment == text]):
        complete = [r for r in of_name if r.is_complete()]
        return max(complete or of_name, key=lambda r: str((r.summary() or {}).get("finished") or ""))
    matches = [r for r in folders if r.digest.startswith(digest) and experiment in ("", r.experiment)]
    if len(digest) < 4 or not matches:
        return None
    if len(matches) > 1:
        raise UserError(
            f"'{text}' is the beginning of several runs: {', '.join(str(r.path) for r in matches)}."
        )
    return matches[0]
