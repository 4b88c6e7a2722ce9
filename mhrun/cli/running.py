"""Runs a configuration and makes its report."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhrun.cli.configuration.compose import compose_config
from mhrun.cli.configuration.replaced import with_replaced_parts
from mhrun.cli.exit_status import FAILED, OK
from mhrun.cli.report_functions import check_report
from mhrun.durations import describe_duration
from mhrun.messages import say
from mhrun.store.folder import RunFolder

if TYPE_CHECKING:
    from mhrun.cli.progress import Bars, Lines, Notes


_SHORT_RUN = 5.0  # seconds; a shorter run prints no breakdown of its time


def run_once(overrides: Sequence[str], folders: Sequence[Path]) -> int:
    """Run a command line, print what was found and the paths, and return 1 if a part of the report failed."""
    start, spent = time.monotonic(), dict[str, float]()
    config = with_replaced_parts(compose_config(overrides, folders, check=True), overrides)
    check_report(config)
    folder = compute(config, result_follows=True, spent=spent)
    is_complete = True
    if config["runtime"]["report"]:
        from mhrun.cli.result import show_result
        from mhrun.report.build import PAGE, reported

        show_result(folder)
        is_complete = reported(folder)
    if line := line_of_time(time.monotonic() - start, **spent):
        print(line)
    print(f"run     {folder.path}")
    if config["runtime"]["report"]:
        print(f"report  {folder.report / PAGE}")
    return OK if is_complete else FAILED


def compute(
    config: Mapping[str, Any],
    watching: Bars | Lines | Notes | None = None,
    *,
    result_follows: bool = False,
    spent: dict[str, float] | None = None,
) -> RunFolder:
    """Run a resolved configuration and make its report, unless both exist.

    Args:
        config: resolved.
        watching: receives the progress and is closed at the end; None: progress goes to the terminal.
        result_follows: whether the caller prints the result of a run with a report, which has all warnings.
        spent: receives the arguments of `line_of_time`, unless the run existed.

    Raises:
        UserError: a mistake of the user's.
        Interrupted: the user stopped it.
    """
    from mhrun.cli.progress import Clocked, watcher
    from mhrun.engine.experiment import run_experiment

    place = RunFolder.of(config)
    existed = place.is_complete() and not config["runtime"]["force"] and not place.damage()
    if existed:
        line = f"This run exists already ({place.digest}); runtime.force=true starts it again."
        if config["runtime"]["report"] and not _has_report(place):
            line = f"This run is complete ({place.digest}); making its report."
        print(line, file=sys.stderr)
    clocked = Clocked(watching or watcher())
    try:
        folder = run_experiment(
            config, clocked, warn_last=not (result_follows and config["runtime"]["report"])
        )
    finally:  # restore the terminal in any case
        clocked.close()
    report_start = time.monotonic()
    if config["runtime"]["report"]:
        _report(folder)
    if spent is not None and not existed:
        spent["report"] = time.monotonic() - report_start
        spent["methods"] = clocked.seconds or math.inf  # another process may have run all steps
    return folder


def line_of_time(whole: float, methods: float = math.inf, report: float = 0.0) -> str:
    """Return a line on where the time of a run went, empty if it was short or the methods took half of it or more.

    Args:
        whole: seconds of the command.
        methods: seconds in which steps of methods ran; without any, there is nothing to explain.
        report: seconds of the report.
    """
    if whole < _SHORT_RUN or methods >= whole / 2:
        return ""
    rest = max(0.0, whole - methods - report)
    whole_text, steps, report_text, rest_text = map(describe_duration, (whole, methods, report, rest))
    return (
        f"time    {whole_text}: steps {steps}, report {report_text}, the rest {rest_text}: "
        "data, pilots, and compilation, which later runs have from the cache"
    )


def _has_report(folder: RunFolder) -> bool:
    from mhrun.report.build import reported

    return reported(folder)


def _report(folder: RunFolder) -> None:
    from mhrun.report.build import build_report, reported

    if reported(folder):
        return
    print("report: metrics, claims, tables, figures ...", file=sys.stderr, flush=True)
    built = build_report(folder, lambda message: print(message, file=sys.stderr, flush=True), again=False)
    for line in (*built.failures, *built.unknown_metrics):
        say(line)
