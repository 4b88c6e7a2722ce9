"""The report of a sweep: a table and a figure of all runs, and the experiment's additions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mhrun.report.build import PAGE, Parts, found_or_failing, report_parts
from mhrun.report.check_commands import project_of
from mhrun.report.claims.evidence import evidence_of
from mhrun.report.claims.judge import Judged, judge_sweep
from mhrun.report.declared import measure_of
from mhrun.report.guard import NO_FIGURE, NO_TABLE, Guard
from mhrun.report.metrics import to_json
from mhrun.report.on_page import draw, figure_on_page, notes_or_line, table_on_page, write_drawn
from mhrun.report.page import FigureOnPage, TableOnPage, claims_context, template
from mhrun.report.run import Run, labels
from mhrun.report.style import method_styles, shared_colours, style
from mhrun.report.summary import NAMED
from mhrun.report.sweep.figure import NO_METHODS, NOTHING, sweep_figure
from mhrun.report.sweep.seeds import seeds_figure
from mhrun.report.sweep.table import (
    drawn_columns,
    floors_of,
    headings_of,
    jobs_config,
    keys_of,
    marked_methods,
    meanings_of,
    notes_of,
    rendered_sweep,
    sweep_table,
    unknown_in_sweep,
)
from mhrun.report.sweep.text import SEED, over_seeds, sweep_finding, sweep_warnings
from mhrun.report.tables import write_table
from mhrun.store.checksums import write_sealed
from mhrun.store.files import explain, read_json, remove, write_text
from mhrun.store.sweep import Job, jobs_of_sweep

MEANS = "sweep_seeds"
"""The name of the table of means over seeds."""
_OVER_SEEDS = "\nMean ± standard deviation over the seeds; the table below has every job."
_SE, _SD = "one standard error", "standard deviation over seeds"
_NUMBER = re.compile(r"-?\d[\d.,]*(e[+-]?\d+)?")


def build_sweep_report(place: Path, warn: Callable[[str], None]) -> Path:
    """Write the sweep's table, figure and the experiment's additions, and return its page.

    The page lists the failures too. `warn` is called with a message for each failed part; the page shows the message in
    its place.

    Raises:
        UserError: the sweep's folder cannot be written.
    """
    guard = Guard(place / "log.txt")
    try:
        jobs = jobs_of_sweep(place)
        metrics = _metrics_of(place, jobs, guard)
        additions = _additions(place, jobs, guard)
        write_text(place / "index.html", _page(place, jobs, metrics, additions))
    except OSError as error:
        raise explain(error, place / "index.html") from error
    for line in guard.failures:
        warn(line)
    return place / "index.html"


class _Metrics(NamedTuple):
    """Every metric of every job: tables and a figure, or a line in their place."""

    frame: pd.DataFrame
    keys: list[str]  # the swept settings
    explained: dict[str, str]  # heading -> what its column is
    finding: str
    table: Mapping[str, str] | str
    means: Mapping[str, str] | str  # over seeds
    figure: Mapping[str, bytes] | str


def _metrics_of(place: Path, jobs: Sequence[Job], guard: Guard) -> _Metrics:
    """Make the tables and the figure of a sweep's metrics, and write them into its folder in the place of old ones."""
    for old in (*place.glob("sweep.*"), *place.glob(f"{MEANS}.*")):
        if old.suffix != ".json":  # the sweep itself
            old.unlink(missing_ok=True)
    frame, config = sweep_table(jobs), jobs_config(jobs)
    if frame.empty:
        return _Metrics(frame, [], {}, "", *[_nothing(jobs)] * 3)
    keys, headings = keys_of(frame), headings_of(config, frame)
    averaged, other_keys = over_seeds(frame, keys)
    table = guard("sweep", NO_TABLE, lambda: rendered_sweep(frame, keys, headings))
    means: Mapping[str, str] | str = NOTHING
    if SEED in keys:
        means = guard(MEANS, NO_TABLE, lambda: rendered_sweep(averaged, other_keys, headings, "sd"))
    drawn, drawn_keys = (averaged, other_keys) if other_keys else (frame, keys)
    styles = _method_styles(jobs)
    bars = _SD if other_keys and SEED in keys else _SE
    floors, columns = floors_of(config), drawn_columns(drawn, config)
    with style():
        figure = guard(
            "sweep",
            NO_FIGURE,
            lambda: draw(
                lambda: (
                    seeds_figure(columns, styles, headings, floors)
                    if drawn_keys == [SEED]
                    else sweep_figure(columns, drawn_keys, styles, headings, floors, bars)
                ),
                "sweep",
            ),
        )
    for name, content in (("sweep", table), (MEANS, means)):
        if not isinstance(content, str):
            write_table(content, place / name)
    if not isinstance(figure, str):
        write_drawn(figure, place / "sweep")
    explained = {headings.get(name, name): meaning for name, meaning in meanings_of(config, frame).items()}
    return _Metrics(frame, keys, explained, sweep_finding(config, averaged, other_keys), table, means, figure)


def _page(place: Path, jobs: Sequence[Job], metrics: _Metrics, additions: Additions) -> str:
    """Return the page of a sweep."""
    config = jobs_config(jobs) or {"experiment": place.parent.parent.name, "scale": ""}
    sweep = read_json(place / "sweep.json") or {}
    overrides = sweep.get("overrides")
    words = ["mhrun", *project_of(str(config["experiment"])), "-m"]
    alt, caption = _words_of_figure(metrics.keys)
    return template("sweep.html.j2").render(
        title=config.get("title") or sweep.get("experiment", ""),
        scale=_in_one_line(config, jobs),
        command=" ".join([shlex.join(words), *map(str, overrides)]) if isinstance(overrides, list) else "",
        finding=metrics.finding,
        warnings=[]
        if metrics.frame.empty
        else [*unknown_in_sweep(jobs), *sweep_warnings(metrics.frame, job_warnings(jobs))],
        means=TableOnPage(MEANS, _OVER_SEEDS, metrics.means, metrics.explained)
        if SEED in metrics.keys
        else None,
        table=TableOnPage("sweep", "", metrics.table, metrics.explained),
        explained=metrics.explained,
        figure=FigureOnPage("sweep", "", metrics.figure),
        figure_alt=alt,
        figure_caption=caption,
        jobs=[(job, (job.folder.report / PAGE).exists()) for job in jobs],  # none with runtime.report=false
        **claims_context(evidence_of(config, additions.claims, "sweeps"), additions.claims),
        **additions._asdict(),
    )


def _words_of_figure(keys: Sequence[str]) -> tuple[str, str]:
    """Return the alternative text and the caption of the figure of a sweep's metrics."""
    if list(keys) == [SEED]:
        alt = "Each metric by method, a marker for each seed and the mean over seeds"
        return alt, "Each metric by method, over seeds."
    caption = "Each metric against the first setting swept"
    caption += (
        " but the seed: the mean over seeds. Bars: standard deviation over seeds."
        if SEED in keys
        else ". Bars: one standard error, where the experiment gives one."
    )
    return (
        "Each metric against the swept setting, one line per method",
        f"{caption} Open markers: too short to judge.",
    )


class SweepSummary(NamedTuple):
    """What a sweep found, for the terminal."""

    finding: str
    keys: list[str]  # the swept settings, the first columns of the table
    # A row for each job and method, means over seeds: swept settings, method, the experiment's measure or the first
    # numbers that it names for sweeps, ESS, R-hat
    table: pd.DataFrame
    is_over_seeds: bool = False
    warnings: Sequence[str] = ()  # of the runs, with the settings of the job that each is of
    notes: Sequence[str] = ()  # on the marks in the table


def sweep_summary(place: Path) -> SweepSummary | str:
    """Return what the finished jobs of a sweep found, or a sentence if they have no methods."""
    jobs = jobs_of_sweep(place)
    frame, config = sweep_table(jobs), jobs_config(jobs)
    if frame.empty:
        return _nothing(jobs)
    is_over_seeds = SEED in keys_of(frame)
    frame, keys = over_seeds(frame, keys_of(frame))
    measure = measure_of(config)
    named = ((config.get("report") or {}).get("sweep") or [])[:NAMED]
    metrics = named if measure is None else [measure.metric, measure.floor]
    numbers = dict.fromkeys(name for name in (*metrics, "ess", "rhat") if name in frame)
    if not any(frame[name].count() for name in numbers):  # runs without a report
        numbers = dict.fromkeys(name for name in ("accept_rate", "data_per_step") if name in frame)
    columns = list(dict.fromkeys([*keys, "method", *numbers]))
    table = frame.assign(method=marked_methods(frame))[columns].rename(columns=headings_of(config, frame))
    warnings = unknown_in_sweep(jobs)
    warnings += [f"{where}: {line}" for where, lines in job_warnings(jobs) for line in lines]
    finding = sweep_finding(config, frame, keys)
    return SweepSummary(finding, keys, table, is_over_seeds, warnings, notes_of(frame))


def _nothing(jobs: Sequence[Job]) -> str:
    """Return why a sweep without methods has no table."""
    return NO_METHODS if any(job.has_run for job in jobs) else NOTHING


def job_warnings(jobs: Sequence[Job]) -> Iterator[tuple[str, list[str]]]:
    """Yield the swept settings of each job and the warnings of its methods.

    Of those that are alike but for their numbers the first, with the number of jobs that have others.
    """
    # A warning without its numbers -> the first job that has it, and the line.
    first: dict[str, tuple[Job, str]] = {}
    others: dict[str, set[int]] = {}
    for job in jobs:
        if job.has_run:
            methods = (job.folder.summary() or {})["methods"].values()
            for line in (str(line) for results in methods for line in results.get("warnings") or []):
                kind = _NUMBER.sub("", line)
                of_first = first.setdefault(kind, (job, line))[0]
                others.setdefault(kind, set()).update({job.number} - {of_first.number})
    for job in jobs:
        of_job = {kind: line for kind, (of_first, line) in first.items() if of_first is job}
        yield ", ".join(job.overrides), [line + _more(len(others[kind])) for kind, line in of_job.items()]


def _more(jobs: int) -> str:
    """Return how many more jobs have a warning, as an addition to it; empty for none."""
    return f" (Likewise in {jobs:,} more job{'s' * (jobs > 1)}.)" if jobs else ""


def _method_styles(jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """Return the style of each method by its label, as in the reports of the runs."""
    styles: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if job.has_run:
            config = job.folder.config()
            names = labels(config, (job.folder.summary() or {})["methods"])
            for name, line_style in method_styles(names, shared_colours(config)).items():
                styles.setdefault(names[name], line_style)
    return styles


def _in_one_line(config: Mapping[str, Any], jobs: Sequence[Job]) -> str:
    """Return swept settings, scale and status of the jobs, in one line."""
    done = sum(job.is_done for job in jobs)
    swept: dict[str, dict[str, None]] = {}
    for job in jobs:
        for override in job.overrides:
            key, _, text = override.partition("=")
            swept.setdefault(key, {})[text] = None
    settings = [f"{key} = {', '.join(texts)}" for key, texts in swept.items() if len(texts) > 1]
    scale = f"{config['scale']} scale" if config["scale"] else ""
    count = f"{done:,} of {len(jobs):,} jobs done" if done < len(jobs) else f"{len(jobs):,} jobs"
    return " · ".join(
        part for part in (f"experiment {config['experiment']}", scale, "; ".join(settings), count) if part
    )


class Additions(NamedTuple):
    """The experiment's additions to the page of a sweep."""

    claims: list[Judged]
    figures: list[FigureOnPage]
    tables: list[TableOnPage]
    notes: list[str]
    lines: list[str]  # in place of failed parts


def _additions(place: Path, jobs: Sequence[Job], guard: Guard) -> Additions:
    """Compute the metrics of a sweep, judge its claims, draw the experiment's tables and figures.

    They are functions of the list of existing runs, named by ``report.sweep_metrics``, ``sweep_tables``,
    ``sweep_figures`` and ``sweep_notes``; metrics and verdicts go into summary.json.
    """
    folder = place / "report"
    remove(folder)
    remove(place / "summary.json")
    jobs = [job for job in jobs if job.has_run]
    runs = [Run(job.folder) for job in jobs]
    parts = guard("report", "The experiment's part of this page could not be made", lambda: _parts(runs))
    if isinstance(parts, str):
        return Additions([], [], [], [], [parts])
    if parts == Parts(None, None, {}, {}):
        return Additions([], [], [], [], [])
    folder.mkdir(parents=True)
    empty: dict[str, Any] = {}
    none: list[Judged] = []
    metrics, metrics_lines = guard.value(
        "metrics", "The metrics of the sweep could not be computed", lambda: _metrics(parts, runs), empty
    )
    claims, claims_lines = guard.value(
        "claims",
        "The claims could not be judged",
        lambda: _judged(runs, jobs, metrics) if metrics else none,
        none,
    )
    tables = [
        table_on_page(name, function, partial(function, runs), guard, folder)
        for name, function in parts.tables.items()
    ]
    with style():
        figures = [
            figure_on_page(name, function, runs, guard, folder) for name, function in parts.figures.items()
        ]
    notes = notes_or_line(parts.notes, runs, guard)
    write_sealed(
        place / "summary.json", {"metrics": to_json(metrics), "claims": [claim._asdict() for claim in claims]}
    )
    return Additions(claims, figures, tables, notes, metrics_lines + claims_lines)


def _parts(runs: Sequence[Run]) -> Parts:
    spec = (runs[0].config.get("report") or {}) if runs else {}
    return report_parts(spec, "sweep_", found_or_failing)


def _metrics(parts: Parts, runs: Sequence[Run]) -> dict[str, Any]:
    return dict(parts.metrics(runs)) if parts.metrics else {}


def _judged(runs: Sequence[Run], jobs: Sequence[Job], metrics: Mapping[str, Any]) -> list[Judged]:
    swept: dict[str, set[Any]] = {}
    for job in jobs:
        for key, value in job.swept.items():
            swept.setdefault(key, set()).add(value)
    paper_run = any((run.config.get("runtime") or {}).get("departures") == [] for run in runs)
    return judge_sweep(runs[0].config, swept, paper_run, metrics)
