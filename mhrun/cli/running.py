"""Runs a configuration and makes its report."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhrun.cli.compose import compose_config
from mhrun.store.folder import RunFolder

if TYPE_CHECKING:
    from mhrun.cli.progress import Bars, Lines, Notes


def run_once(words: Sequence[str], folders: Sequence[Path]) -> int:
    """Run a command line, print what was found and the paths, and return 1 if a part of the report failed."""
    config = compose_config(words, folders, check=True)
    folder = compute(config, result_follows=True)
    whole = True
    if config["runtime"]["report"]:
        from mhrun.cli.result import show_result
        from mhrun.report.build import PAGE, reported

        show_result(folder)
        whole = reported(folder)
    print(f"run     {folder.path}")
    if config["runtime"]["report"]:
        print(f"report  {folder.report / PAGE}")
    return 0 if whole else 1


def compute(
    config: Mapping[str, Any],
    watching: Bars | Lines | Notes | None = None,
    *,
    result_follows: bool = False,
) -> RunFolder:
    """Run a resolved configuration and make its report, unless both exist.

    Args:
        config: resolved.
        watching: receives the progress and is closed at the end; None: progress goes to the terminal.
        result_follows: whether the caller prints the result of a run with a report, which has all warnings.

    Raises:
        UserError: a mistake of the user's.
        Interrupted: the user stopped it.
    """
    from mhrun.cli.progress import watcher
    from mhrun.engine.experiment import run_experiment

    place = RunFolder.of(config)
    if place.is_complete() and not config["runtime"]["force"] and not place.damage():
        print(
            f"This run exists already ({place.digest}); runtime.force=true starts it again.", file=sys.stderr
        )
    watching = watching or watcher()
    try:
        folder = run_experiment(
            config, watching, warn_last=not (result_follows and config["runtime"]["report"])
        )
    finally:  # restore the terminal in any case
        watching.close()
    if config["runtime"]["report"]:
        _report(folder)
    return folder


def _report(folder: RunFolder) -> None:
    from mhrun.report.build import build_report, reported

    if reported(folder):
        return
    print("report: metrics, claims, tables, figures ...", file=sys.stderr, flush=True)
    built = build_report(folder, lambda message: print(message, file=sys.stderr, flush=True), again=False)
    for line in built.failures:
        print(f"mhrun: {line}", file=sys.stderr, flush=True)
