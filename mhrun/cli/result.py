"""Prints the results of a run or sweep at its end."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mhrun.store.folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd

    from mhrun.report.run import Run

_ROWS = 30  # of a sweep's table that are shown
_WARNINGS = 6  # that are shown before the rest are counted; the report has all
_PIPE = 120  # characters of a line of text where there is no terminal
_WHOLE = 10_000  # of a row of a table there, which is never cut
_LABEL, _GAP = 12, 2  # characters of a method's name at least, and between two columns
_MIN_WIDTH_FOR_ALL = 110  # columns of a terminal below which `_WIDE_ONLY` is left out
_WIDE_ONLY = ("acceptance", "set-up", "ESS per 10^6", "ESS per s")


def show_result(folder: RunFolder, width: int | None = None) -> None:
    """Print what a complete run with a report found: a sentence, its status, its methods and its warnings.

    Args:
        folder: the run.
        width: characters of a line; None: of the terminal.

    Raises:
        UserError: the run's results are damaged.
    """
    from mhrun.report import summary_of
    from mhrun.report.run import Run
    from mhrun.report.summary import marked_methods

    run = Run(folder)
    summary = summary_of(run)
    console = Console(file=sys.stdout, width=width or (None if sys.stdout.isatty() else _PIPE))

    status = summary.status
    for line in (summary.finding, " ".join(filter(None, (status.text, status.recorded)))):
        if line:
            _say(line, console)
    if status.command:  # it is copied: a terminal folds it, without line breaks
        print(f"For verdicts: {status.command}")
    methods = marked_methods(summary._replace(methods=_with_acceptance(run, summary.methods)))
    if len(methods) and len(methods.columns):
        print()
        piped = width is None and not sys.stdout.isatty()
        table, least = _table(methods, _WHOLE if piped else console.width)
        Console(file=sys.stdout, width=_WHOLE if piped else max(console.width, least)).print(table)
        for line in summary.footnotes:
            # Users copy its commands: a terminal folds them, without line breaks.
            if line == summary.declared:
                print(line)
            else:
                _say(line, console)
    _warn(summary.warnings, console)
    print(flush=True)


def _say(text: str, console: Console, start: str = "") -> None:
    print(textwrap.fill(text, console.width, initial_indent=start, subsequent_indent=" " * len(start)))


def _warn(warnings: Sequence[str], console: Console) -> None:
    """Print the first warnings, and how many more there are."""
    if warnings:
        print()
    for warning in warnings[:_WARNINGS]:
        _say(warning, console, "warning: ")
    if (n_more := len(warnings) - _WARNINGS) > 0:
        _say(f"{n_more} more in the report", console, "warning: ")


def show_sweep(place: Path) -> None:
    """Print what the sweep in a folder found: a sentence, and a row for each job and method, means over seeds.

    If its jobs have no methods, a sentence that says so.
    """
    from mhrun.report.sweep.build import sweep_summary
    from mhrun.report.tables import shown_frame

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPE)
    if isinstance(summary := sweep_summary(place), str):
        _say(summary, console)
        print(flush=True)
        return
    if summary.finding:
        _say(summary.finding, console)
    print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in summary.table.columns:
        is_left = heading == "method" or heading in summary.keys
        table.add_column(
            str(heading), justify="left" if is_left else "right", no_wrap=True, overflow="ellipsis"
        )
    top, n_keys = summary.table[:_ROWS], len(summary.keys) + 1
    of_keys = top.iloc[:, :n_keys].to_numpy(dtype=object)
    of_numbers = shown_frame(top.iloc[:, n_keys:]).to_numpy()
    for names, numbers in zip(of_keys, of_numbers, strict=True):
        table.add_row(*map(str, names), *numbers)
    console.print(table)
    for note in summary.notes:
        print(note)
    if summary.is_over_seeds:
        print("mean ± standard deviation over the seeds; the report has every job")
    if (n_more := len(summary.table) - _ROWS) > 0:
        print(f"{n_more} more rows in the report")
    _warn(summary.warnings, console)
    print(flush=True)


def _with_acceptance(run: Run, methods: pd.DataFrame) -> pd.DataFrame:
    """Return the table of methods with acceptance rates behind what they sample, where any method has one."""
    from mhrun.report.summary import TARGET, TEMPERATURE

    rates = {
        run.label(name): summary["accept_rate"] if summary["n_accept_tests"] else None
        for name, summary in run.methods.items()
    }
    methods = methods.copy()
    if any(rate is not None for rate in rates.values()):
        place = sum(heading in methods for heading in (TARGET[0], TEMPERATURE[0]))
        methods.insert(place, "acceptance", [rates[str(label)] for label in methods.index])
    return methods


def _table(methods: pd.DataFrame, width: int) -> tuple[Table, int]:
    """Return the table of the methods, and how many characters its lines take at least.

    Labels are cut to leave room for the numbers, which never are: a terminal that is too narrow folds the lines.
    """
    from mhrun.report.tables import shown_frame

    narrow = width < _MIN_WIDTH_FOR_ALL
    headings = [name for name in methods.columns if not narrow or name not in _WIDE_ONLY]
    titles = [heading.replace(" ", "\n") if narrow else heading for heading in headings]
    rows = shown_frame(methods[headings]).to_numpy().tolist()
    columns = [[*title.split("\n"), *(row[k] for row in rows)] for k, title in enumerate(titles)]
    numbers = sum(_GAP + max(map(len, column)) for column in columns)
    table = Table(box=None, pad_edge=False, header_style="bold")
    room = max(_LABEL, width - numbers)
    table.add_column("method", no_wrap=True, overflow="ellipsis", min_width=_LABEL, max_width=room)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for label, row in zip(methods.index, rows, strict=True):
        table.add_row(str(label), *row)
    return table, _LABEL + numbers
