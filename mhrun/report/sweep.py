"""The report of a sweep: a table and a figure of all runs, and the experiment's additions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mhrun.diagnostics.grid import Estimate
from mhrun.report.build import PAGE, Parts, caption_of, draw, parts_of, plain, write_drawn
from mhrun.report.claims import Judged, judge_sweep
from mhrun.report.declared import column_headings, column_meanings, measure_of
from mhrun.report.efficiency import unconverged
from mhrun.report.guard import Guard
from mhrun.report.page import FigureOnPage, TableOnPage, claims_words, template
from mhrun.report.run import Run, labels
from mhrun.report.status import status_of
from mhrun.report.style import method_styles, style
from mhrun.report.summary import FLOOR, MARK
from mhrun.report.sweep_figure import NOTHING, sweep_figure
from mhrun.report.sweep_words import BESIDES, SEED, SEEDS, SHORT, over_seeds, sweep_finding, sweep_warnings
from mhrun.report.tables import rendered, write_table
from mhrun.store.checksums import write_sealed
from mhrun.store.files import explain, read_json, remove, write_text
from mhrun.store.folder import RunFolder

MEANS = "sweep_seeds"
"""The name of the table of means over seeds."""
_OVER_SEEDS = "\nMean ± standard deviation over the seeds; the table below has every job."


def jobs_of(place: Path) -> list[dict[str, Any]]:
    """Return the records of the jobs of a sweep, in order."""
    found = [read_json(path) for path in sorted((place / "jobs").glob("*.json"))]
    return [job for job in found if job is not None and _is_job(job)]


def _is_job(found: Mapping[str, Any]) -> bool:
    """Return whether a JSON object has the form of a job's record."""
    words = found.get("overrides")
    return (
        isinstance(found.get("number"), int)
        and isinstance(found.get("status"), str)
        and isinstance(words, list)
        and all(isinstance(word, str) for word in words)
    )


def build_sweep_report(
    place: Path, warn: Callable[[str], None] = lambda line: print(f"mhrun: {line}", file=sys.stderr)
) -> Path:
    """Write the sweep's table, figure and the experiment's additions, and return its page.

    The page lists the failures too. `warn` is called with a message for each failed part; the page shows the message in
    its place.

    Raises:
        UserError: the sweep's folder cannot be written.
    """
    try:
        return _built(place, warn)
    except OSError as error:
        raise explain(error, place / "index.html") from error


def _built(place: Path, warn: Callable[[str], None]) -> Path:
    jobs, guard = jobs_of(place), Guard(place / "log.txt")
    frame = sweep_table(place, jobs)
    config = _config(place, jobs)
    headings: dict[str, str] = {}
    keys: list[str] = []
    others: list[str] = []  # but for the seed
    table: dict[str, str] | str = NOTHING
    means: dict[str, str] | str = NOTHING
    figure: dict[str, bytes] | str = NOTHING
    finding = ""
    if not frame.empty:
        keys = [str(c) for c in frame.columns[: list(frame.columns).index("method")]]
        headings = _headings(config, frame)
        table = guard("sweep", "This table could not be made", lambda: _rendered(frame, keys, headings))
        averaged, others = over_seeds(frame, keys)
        finding = sweep_finding(config, averaged, others)
        if SEED in keys:
            means = guard(
                MEANS, "This table could not be made", lambda: _rendered(averaged, others, headings, "sd")
            )
        styles = _method_styles(place, jobs)
        drawn, along = (averaged, others) if others else (frame, keys)
        with style():
            figure = guard(
                "sweep",
                "This figure could not be drawn",
                lambda: draw(lambda: sweep_figure(_drawn(drawn, config), along, styles, headings), "sweep"),
            )
    for old in (*place.glob("sweep.*"), *place.glob(f"{MEANS}.*")):
        if old.suffix != ".json":  # the sweep itself
            old.unlink()
    for name, made in (("sweep", table), (MEANS, means)):
        if not isinstance(made, str):
            write_table(made, place / name)
    if not isinstance(figure, str):
        write_drawn(figure, place / "sweep")
    sweep = read_json(place / "sweep.json") or {}
    words = sweep.get("overrides")
    meanings = _meanings(config, frame)
    explained = {headings.get(name, name): what for name, what in meanings.items()}
    own = _own(place, jobs, guard)
    page = template("sweep.html.j2").render(
        title=config.get("title") or sweep.get("experiment", ""),
        scale=_in_one_line(config, jobs),
        command=" ".join(["mhrun -m", *map(str, words)]) if isinstance(words, list) else "",
        finding=finding,
        warnings=[] if frame.empty else sweep_warnings(frame, _warnings(place, jobs)),
        means=TableOnPage(MEANS, _OVER_SEEDS, means, explained) if SEED in keys else None,
        is_over_seeds=SEED in keys and bool(others),
        table=TableOnPage("sweep", "", table, explained),
        explained=explained,
        figure=FigureOnPage("sweep", "", figure),
        jobs=[job | {"missing": _missing(place, job), "page": _page(place, job)} for job in jobs],
        **claims_words(status_of(config, own.claims, "sweeps"), own.claims),
        **own._asdict(),
    )
    write_text(place / "index.html", page)
    for line in guard.failures:
        warn(line)
    return place / "index.html"


class SweepSummary(NamedTuple):
    """What a sweep found, for the terminal."""

    finding: str
    keys: list[str]  # the swept settings, the first columns of the table
    # A row for each job and method, means over seeds: swept settings, method, the experiment's measure, ESS, R-hat
    table: pd.DataFrame
    is_over_seeds: bool = False


def sweep_summary(place: Path) -> SweepSummary | None:
    """Return what the finished jobs of a sweep found, None if there are none."""
    jobs = jobs_of(place)
    frame = sweep_table(place, jobs)
    if frame.empty:
        return None
    config = _config(place, jobs)
    keys = [str(name) for name in frame.columns[: list(frame.columns).index("method")]]
    is_over_seeds = SEED in keys
    frame, keys = over_seeds(frame, keys)
    measure = measure_of(config)
    wanted = [measure.metric, measure.floor] if measure is not None else []
    columns = [*keys, "method", *(name for name in (*wanted, "ess", "rhat") if name in frame)]
    table = frame[columns].rename(columns=_headings(config, frame))
    table["method"] = table["method"].where(~frame[SHORT].astype(bool), table["method"] + f" {MARK}")
    return SweepSummary(sweep_finding(config, frame, keys), keys, table, is_over_seeds)


def _headings(config: Mapping[str, Any], frame: pd.DataFrame) -> dict[str, str]:
    """Return the heading of each column of a sweep's table."""
    found = dict(column_headings(config, [str(name) for name in frame.columns]))
    measure = measure_of(config)
    return found | ({measure.floor: FLOOR[0]} if measure is not None and measure.floor in found else {})


def _meanings(config: Mapping[str, Any], frame: pd.DataFrame) -> dict[str, str]:
    """Return what each column of a sweep's table is."""
    if frame.empty:
        return {}
    found = dict(column_meanings(config, [str(name) for name in frame.columns]))
    measure = measure_of(config)
    return found | ({measure.floor: FLOOR[1]} if measure is not None and measure.floor in frame else {})


def _drawn(frame: pd.DataFrame, config: Mapping[str, Any]) -> pd.DataFrame:
    """Return the columns that the figure draws: what the experiment names for sweeps, or else acceptance and ESS."""
    named = (config.get("report") or {}).get("sweep")
    measure = measure_of(config)
    besides = ["rhat", *(["ess"] if named else []), *([measure.floor] if measure is not None else []), SEEDS]
    return frame.drop(columns=[name for name in besides if name in frame and name not in (named or [])])


def _rendered(
    frame: pd.DataFrame, keys: Sequence[str], headings: Mapping[str, str], error: str = "se"
) -> dict[str, str]:
    """Return the table of a sweep: for people with headings and marks, as CSV with the names of metrics.

    `error` is what follows the ± of its numbers: ``se`` or ``sd``.
    """
    short = frame[SHORT].astype(bool)
    whole, first = frame.drop(columns=SHORT), (*keys, "method")[0]
    marked = whole.assign(method=whole["method"].where(~short, whole["method"] + f" {MARK}"))
    people = marked.set_index(first).rename(columns=dict(headings))
    head, line, rest = rendered(whole.set_index(first))["csv"].partition("\n")
    return rendered(people) | {"csv": f"{head.replace(' (se)', f' ({error})')}{line}{rest}"}


def _warnings(place: Path, jobs: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the swept settings of each job and the warnings of its methods; those that jobs share are said once."""
    seen = set[str]()
    for job in jobs:
        if job["status"] == "done" and not _missing(place, job):
            methods = (_folder(place, job).summary() or {})["methods"].values()
            lines = [str(line) for about in methods for line in about.get("warnings") or []]
            yield ", ".join(job["overrides"]), [line for line in lines if line not in seen]
            seen.update(lines)


def _config(place: Path, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the configuration of the first existing job; without any, the minimum for a page."""
    for job in jobs:
        if job["status"] == "done" and not _missing(place, job):
            return _folder(place, job).config()
    return {"experiment": place.parent.parent.name, "scale": ""}


def _method_styles(place: Path, jobs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the style of each method by its label, as in the reports of the runs."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        if job["status"] == "done" and not _missing(place, job):
            folder = _folder(place, job)
            names = labels(folder.config(), (folder.summary() or {})["methods"])
            for name, look in method_styles(names).items():
                found.setdefault(names[name], look)
    return found


def _in_one_line(config: Mapping[str, Any], jobs: list[dict[str, Any]]) -> str:
    """Return swept settings, scale and status of the jobs, in one line."""
    done = sum(job["status"] == "done" for job in jobs)
    swept: dict[str, dict[str, None]] = {}
    for job in jobs:
        for word in job["overrides"]:
            key, _, text = word.partition("=")
            swept.setdefault(key, {})[text] = None
    several = [f"{key} = {', '.join(texts)}" for key, texts in swept.items() if len(texts) > 1]
    scale = f"{config['scale']} scale" if config["scale"] else ""
    count = f"{done:,} of {len(jobs):,} jobs done" if done < len(jobs) else f"{len(jobs):,} jobs"
    return " · ".join(
        part for part in (f"experiment {config['experiment']}", scale, "; ".join(several), count) if part
    )


class Own(NamedTuple):
    """The experiment's additions to the page of a sweep."""

    claims: list[Judged]
    figures: list[FigureOnPage]
    tables: list[TableOnPage]
    notes: list[str]
    lines: list[str]  # in place of failed parts


def _own(place: Path, jobs: list[dict[str, Any]], guard: Guard) -> Own:
    """Compute the metrics of a sweep, judge its claims, draw the experiment's tables and figures.

    They are functions of the list of existing runs, named by ``report.sweep_metrics``, ``sweep_tables``,
    ``sweep_figures`` and ``sweep_notes``; metrics and verdicts go into summary.json.
    """
    folder, found = place / "report", [job for job in jobs if job["status"] == "done"]
    remove(folder)
    remove(place / "summary.json")
    there = [job for job in found if not _missing(place, job)]
    runs = [Run(_folder(place, job)) for job in there]
    parts = guard("report", "The sweep has no report of its own", lambda: _parts(runs))
    if isinstance(parts, str):
        return Own([], [], [], [], [parts])
    if parts == Parts(None, None, {}, {}):
        return Own([], [], [], [], [])
    folder.mkdir(parents=True)
    metrics = guard(
        "metrics", "The metrics of the sweep could not be computed", lambda: _metrics(parts, runs)
    )
    numbers = {} if isinstance(metrics, str) else metrics
    judged = guard(
        "claims", "The claims could not be judged", lambda: _judged(runs, there, numbers) if numbers else []
    )
    claims = [] if isinstance(judged, str) else judged
    tables = []
    for name, function in parts.tables.items():
        made = guard(name, "This table could not be made", lambda f=function: rendered(f(runs)))  # type: ignore[misc]
        if not isinstance(made, str):
            write_table(made, folder / name)
        tables.append(TableOnPage(name, caption_of(function) or name, made))
    figures = []
    with style():
        for name, function in parts.figures.items():
            drawn = guard(
                name, "This figure could not be drawn", partial(draw, partial(function, runs), name)
            )
            if not isinstance(drawn, str):
                write_drawn(drawn, folder / name)
            figures.append(FigureOnPage(name, caption_of(function) or name, drawn))
    notes = guard(
        "notes", "The notes could not be made", lambda: list(parts.notes(runs)) if parts.notes else []
    )
    write_sealed(
        place / "summary.json",
        {"metrics": plain(numbers), "claims": [claim._asdict() for claim in claims]},
    )
    return Own(
        claims,
        figures,
        tables,
        [notes] if isinstance(notes, str) else notes,
        [line for line in (metrics, judged) if isinstance(line, str)],
    )


def _parts(runs: Sequence[Run]) -> Parts:
    spec = (runs[0].config.get("report") or {}) if runs else {}
    return parts_of(spec, "sweep_")


def _metrics(parts: Parts, runs: Sequence[Run]) -> dict[str, Any]:
    return dict(parts.metrics(runs)) if parts.metrics else {}


def _judged(runs: Sequence[Run], jobs: list[dict[str, Any]], metrics: Mapping[str, Any]) -> list[Judged]:
    swept: dict[str, set[Any]] = {}
    for job in jobs:
        for key, value in map(_pair, job["overrides"]):
            swept.setdefault(key, set()).add(value)
    paper_run = any((run.config.get("runtime") or {}).get("departures") == [] for run in runs)
    return judge_sweep(runs[0].config, swept, paper_run, metrics)


def sweep_table(place: Path, jobs: list[dict[str, Any]]) -> pd.DataFrame:
    """Return a row per job and method: swept settings, the metrics that the experiment names, run and `SHORT`.

    A swept setting with the name of another column, such as a metric, is called ``NAME (setting)``. The measure's noise
    floor follows the measure. ESS and R-hat, and effective draws per evaluation and second, are
    there where a run's report has any; temperature and data per step where they vary.
    """
    rows = []
    for job in jobs:
        if job["status"] != "done" or _missing(place, job):
            continue
        folder = _folder(place, job)
        summary, config = folder.summary() or {}, folder.config()
        swept = dict(_pair(word) for word in job["overrides"])
        wanted = list((config.get("report") or {}).get("sweep") or ["accept_rate"])
        measure = measure_of(config)
        if measure is not None and measure.floor and measure.metric in wanted and measure.floor not in wanted:
            wanted.insert(wanted.index(measure.metric) + 1, measure.floor)
        for name, label in labels(config, summary["methods"]).items():
            metrics = {key: _metric(summary, name, key) for key in wanted}
            known = ((summary.get("diagnostics") or {}).get("methods") or {}).get(name, {})
            short = unconverged(known)
            about = summary["methods"][name]
            besides = {key: known.get(key) for key in ("ess", "rhat") if key not in wanted} | {
                "draws_temperature": (about.get("samples") or {}).get("temperature"),
                "data_per_step": about.get("minibatch_size_mean"),
                "per_million": None if short else known.get("per_million"),
                "per_second": None if short else known.get("per_second"),
            }
            rest = {"method": label} | metrics | besides | {"run": folder.digest} | {SHORT: short}
            rows.append(_setting_columns(swept, (*rest, SEEDS)) | rest)
    frame = pd.DataFrame(rows)
    if frame.empty:
        return frame
    said = [name for name in BESIDES if name in frame and frame[name].nunique() < 1 + (name in BESIDES[:2])]
    empty = [
        name for name in ("ess", "rhat") if name in frame and name not in wanted and not frame[name].count()
    ]
    return frame.drop(columns=[*said, *empty])


def _setting_columns(swept: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return swept settings by name; one that has the name of another column is called ``NAME (setting)``."""
    return {f"{key} (setting)" if key in columns else key: value for key, value in swept.items()}


def _folder(place: Path, job: Mapping[str, Any]) -> RunFolder:
    # Relative to the sweep's folder: the path recorded by the job is relative to its working directory.
    return RunFolder(place.parent.parent / str(job.get("digest")))


def _missing(place: Path, job: Mapping[str, Any]) -> str:
    """Return what is wrong with the run of a finished job, or an empty string."""
    if job["status"] != "done":
        return ""
    folder = _folder(place, job)
    if not (folder.path / "config.yaml").exists() or folder.summary() is None:
        return "its run is missing; the same command computes it again"
    return "" if folder.is_complete() else "its run is not complete; the same command resumes it"


def _page(place: Path, job: Mapping[str, Any]) -> bool:
    """Return whether the run of a job has a page, which runtime.report=false omits."""
    return (_folder(place, job).report / PAGE).exists()


def _pair(word: str) -> tuple[str, Any]:
    key, _, text = word.lstrip("+").partition("=")
    try:
        return key, float(text) if not text.lstrip("-").isdigit() else int(text)
    except ValueError:
        return key, text


def _metric(summary: dict[str, Any], method: str, key: str) -> Any:
    about = summary["methods"][method]
    if key == "accept_rate" and not about["n_accept_tests"]:
        return None  # a dynamics has no acceptance rate
    found = summary["metrics"].get(f"{method}.{key}", about.get(key))
    if isinstance(found, dict):
        return Estimate(*(float("nan") if found[part] is None else found[part] for part in ("value", "se")))
    return found
