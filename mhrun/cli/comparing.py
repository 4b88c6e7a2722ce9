"""``mhrun compare``: compares runs."""

from __future__ import annotations

import math
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mhrun.cli.exit_status import OK
from mhrun.cli.named_runs import found_run
from mhrun.cli.places import outputs_of
from mhrun.errors import UserError, cut
from mhrun.messages import say
from mhrun.numbers import is_number_text
from mhrun.store.folder import RunFolder, runs
from mhrun.store.identity import differences

if TYPE_CHECKING:
    import pandas as pd

    from mhrun.report.comparison.compare import Comparison
    from mhrun.report.comparison.rows import Row

_SETTINGS = 4  # settings that the line of a run names; the rest are counted
_LEAST_COST = 0.0  # evaluations of `--equal-cost` without a number
_READ = 20  # runs of an experiment whose settings are read, the newest


def compare_runs(arguments: Sequence[str]) -> int:
    """Print a table of the named runs, and write its page.

    Raises:
        UserError: an unknown run or option, or runs that cannot be compared.
    """
    options = _options(arguments)
    reference, kind = options.reference, options.kind
    outputs, names = outputs_of(options.runs)
    if not names:
        raise UserError(
            "compare needs runs: folders, names of experiments (their newest run), or beginnings of digests; "
            "RUN:METHOD is one method of it."
        )
    compared = [found_run(name, outputs) for name in names]
    named_folders = [(name, folder) for name, (folder, _) in zip(names, compared, strict=True)]
    reference_run = None
    if reference is not None:
        reference_run = _reference_run(reference, names, compared, outputs)
        named_folders.append((reference, reference_run[0]))

    from mhrun.report.comparison.draws import least_evaluations
    from mhrun.report.comparison.page import build_comparison
    from mhrun.report.comparison.rows import rows_of

    rows = rows_of([*compared, *([reference_run] if reference_run else [])])
    against = _reference_row(rows, reference, reference_run)
    beside = sys.stdout if kind == "table" else sys.stderr  # of what is no part of the JSON or CSV
    for line in lines_of_runs(named_folders, outputs):
        print(line, file=beside)
    evaluations = options.evaluations
    if evaluations == _LEAST_COST:
        evaluations = least_evaluations(rows, against)
    comparison, page = build_comparison(rows, against, outputs, options.tolerance, evaluations)
    if kind == "table":
        _print_table(comparison, explains=options.explains)
    else:
        print((page.parent / f"compare.{kind}").read_text(encoding="utf-8"), end="")
    for note in comparison.notes:
        say(note)
    if kind == "table" and not options.explains:
        print("columns explained by --explain, and on the page")
    print(f"page    {page}", file=beside)
    return OK


def _reference_row(
    rows: Sequence[Row], reference: str | None, run: tuple[RunFolder, str | None] | None
) -> Row | None:
    """Return the row of the reference; None without one.

    Raises:
        UserError: it is a run of several methods.
    """
    if run is None:
        return None
    folder, method = run
    found = [r for r in rows if r.run.folder.path.resolve() == folder.path.resolve()]
    found = [r for r in found if method in (None, r.method)]
    if len(found) > 1:
        choices = ", ".join(f"{reference}:{r.method}" for r in found[:4])
        raise UserError(
            f"--reference {reference} has several methods; choose {choices}{', ...' * (len(found) > 4)}."
        )
    return found[0] if found else None


def _print_table(comparison: Comparison, *, explains: bool) -> None:
    """Print what its columns are, if `explains`, and the comparison: verdicts end the screen."""
    from mhrun.report.comparison.page import COLUMNS, DISTANCES, EXPLAINED, table

    frame, headings = table(comparison), COLUMNS | DISTANCES
    texts = dict(EXPLAINED) if explains else {}
    if comparison.rule:
        texts["verdict"] = comparison.rule
    explain({headings[key]: text for key, text in texts.items() if headings[key] in frame.columns})
    show(frame, list(DISTANCES.values()))
    print(flush=True)


def _reference_run(
    reference: str, names: Sequence[str], compared: Sequence[tuple[RunFolder, str | None]], outputs: Path
) -> tuple[RunFolder, str | None]:
    """Return the run of ``--reference`` and its method, None for all of them, see `found_run`.

    Raises:
        UserError: no run matches; the name of a method alone is answered with the run that has it.
    """
    try:
        return found_run(reference, outputs)
    except UserError as error:
        for name, (folder, method) in zip(names, compared, strict=True):
            if reference in (folder.summary() or {}).get("methods", {}):
                run = name.rpartition(":")[0] if method else name.rstrip(":")
                raise UserError(
                    f"'{reference}' is a method, not a run; use --reference {run}:{reference}."
                ) from error
        raise


class _Options(NamedTuple):
    """Runs and options of the command line."""

    runs: list[str]
    reference: str | None = None
    kind: str = "table"  # or json, csv
    tolerance: float | None = None
    evaluations: float | None = None  # of each method; `_LEAST_COST`: as many as the method with the least
    explains: bool = False


def _options(arguments: Sequence[str]) -> _Options:
    """Return the runs and the options."""
    found = _Options([])
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        name, equals, value = argument.partition("=")
        if argument in ("--json", "--csv"):
            found = found._replace(kind=argument[2:])
        elif argument == "--explain":
            found = found._replace(explains=True)
        elif name == "--reference":
            if not equals and not waiting:
                raise UserError("--reference needs a run: --reference RUN:METHOD.")
            found = found._replace(reference=value if equals else waiting.pop(0))
        elif name == "--tolerance":
            found = found._replace(tolerance=_tolerance(value if equals or not waiting else waiting.pop(0)))
        elif name == "--equal-cost":
            if not equals and waiting and is_number_text(waiting[0]):  # a space in place of the =
                equals, value = "=", waiting.pop(0)
            found = found._replace(evaluations=_evaluations(value) if equals else _LEAST_COST)
        elif argument.startswith("-"):
            raise UserError(
                f"There is no option {argument!r} here; compare has --reference, --tolerance, --equal-cost, --explain, "
                "--json and --csv."
            )
        else:
            found.runs.append(argument)
    if found.tolerance is not None and found.reference is None:
        raise UserError("--tolerance is a difference from a reference; add --reference RUN:METHOD.")
    return found


def _positive(text: str, refusal: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise UserError(refusal)


def _evaluations(text: str) -> float:
    return _positive(
        text,
        f"--equal-cost={text} must be a positive number of evaluations, such as --equal-cost=1e7; without a number "
        "it is that of the method with the least.",
    )


def _tolerance(text: str) -> float:
    return _positive(
        text,
        f"--tolerance {text or '(nothing)'} must be a positive number of posterior standard deviations: 0.1.",
    )


def lines_of_runs(given: Sequence[tuple[str, RunFolder]], outputs: Path) -> list[str]:
    """Return a line for each compared run: digest, scale, and the settings in which it differs from the others.

    A run that was named by its experiment, which has several, is called the newest of them.

    Args:
        given: the arguments of the command line with their runs.
        outputs: the folder of runs.
    """
    compared = {folder.path.resolve(): folder for _, folder in given}
    configs = {path: folder.config() for path, folder in compared.items()}
    newest: dict[Path, list[RunFolder]] = {}
    folders = runs(outputs)
    for argument, folder in given:
        text = "" if (Path(argument) / "config.yaml").is_file() else argument
        of_experiment = [r for r in folders if r.experiment == folder.experiment]
        if len(of_experiment) > 1 and text.partition(":")[0] == folder.experiment:
            newest[folder.path.resolve()] = of_experiment
    lines = []
    for path, folder in compared.items():
        other_configs = [config for other, config in configs.items() if other != path]
        siblings = newest.get(path, [])
        for other in siblings[-_READ:]:
            if other.path.resolve() not in compared:
                with suppress(FileNotFoundError):  # it was deleted meanwhile
                    other_configs.append(other.config())
        settings = merged_by_method(differences(configs[path], other_configs), other_configs)
        texts = [
            f"{key} = {_short(value)}" if value is not None else key
            for key, value in list(settings.items())[:_SETTINGS]
        ]
        texts += [f"{len(settings) - _SETTINGS:,} more"] if len(settings) > _SETTINGS else []
        line = f"run     {folder.experiment}/{folder.digest}, {configs[path]['scale']} scale"
        line += f", {', '.join(texts)}" if texts else ""
        if siblings:
            line += f"; newest of {len(siblings):,}: give the folder to compare another"
        lines.append(line)
    return lines


def merged_by_method(
    settings: Mapping[str, object], others: Sequence[Mapping[str, Any]]
) -> dict[str, object]:
    """Return settings with those of a method that another run does not have as one, ``with METHOD``."""
    merged: dict[str, object] = {}
    for key, value in settings.items():
        group, _, rest = key.partition(".")
        method = rest.partition(".")[0]
        if group == "methods" and not all(method in (other.get("methods") or {}) for other in others):
            merged[f"with {method}"] = None
        else:
            merged[key] = "null" if value is None else value
    return merged


def _short(value: object) -> str:
    return cut(f"{value:.4g}" if isinstance(value, float) else str(value), 40)


_SHORT_HEADINGS = {
    "ESS per 10^6 evaluations": "per 10^6",
    "ESS per second": "per s",
    "data per step": "data/step",
}


def explain(columns: Mapping[str, str]) -> None:
    """Print what columns of the table are, heading -> text, wrapped to the terminal; nothing without any."""
    width = shutil.get_terminal_size((100, 24)).columns
    names = {_SHORT_HEADINGS.get(heading, heading): text for heading, text in columns.items()}
    start = max(map(len, names), default=0) + 2
    print()
    for name, text in names.items():
        print(textwrap.fill(text, width, initial_indent=name.ljust(start), subsequent_indent=" " * start))
    if names:
        print()


def show(frame: pd.DataFrame, distances: Sequence[str]) -> None:
    """Print the comparison, with distances in a separate table and the methods of a run together."""
    from rich.console import Console
    from rich.table import Table

    from mhrun.report.tables import shown_frame

    of_distance = [name for name in distances if name in frame.columns]
    for columns in ([name for name in frame.columns if name not in of_distance], of_distance):
        if not columns:
            continue
        printed = Table(box=None, pad_edge=False, header_style="bold")
        printed.add_column("", no_wrap=True)
        for heading in columns:
            printed.add_column(_SHORT_HEADINGS.get(heading, heading), justify="right", no_wrap=True)
        latest = ""
        for name, row in zip(frame.index, shown_frame(frame[columns]).to_numpy(), strict=True):
            run, _, method = str(name).rpartition(": ")
            if run != latest:
                printed.add_row(f"[bold]{run}[/bold]")
                latest = run
            printed.add_row(f"  {method}", *row)
        width = None if sys.stdout.isatty() else 160  # a pipe has no width
        Console(width=width).print(printed)
