"""The table of a sweep: a row for each job and method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from mhrun.diagnostics.grid import Estimate
from mhrun.report.declared import column_headings, column_meanings, measure_of, unknown_metrics
from mhrun.report.marks import MARKS, marked, notes
from mhrun.report.run import labels
from mhrun.report.summary import FLOOR, flags_of
from mhrun.report.sweep.text import BESIDES, SEEDS, short_names
from mhrun.report.tables import rendered
from mhrun.store.sweep import Job

_OF_ROWS = ("method", "run", *MARKS, SEEDS)  # columns that no metric may have the name of
# Numbers that every table has, unless the experiment's metrics have them.
_BUILT_IN = ("ess", "rhat", *BESIDES)


def sweep_table(jobs: Sequence[Job]) -> pd.DataFrame:
    """Return a row per job and method: swept settings, the metrics that the experiment names, run and `MARKS`.

    A swept setting with the name of another column, such as a metric, is called ``NAME (setting)``. The measure's noise
    floor follows the measure. ESS and R-hat, and effective draws per evaluation and second, are there where a run's
    report has any; temperature and data per step where they vary.
    """
    frame = pd.DataFrame([row for job in jobs if job.has_run for row in _rows(job)])
    if frame.empty:
        return frame
    constant = [
        name for name in BESIDES if name in frame and frame[name].nunique() < 1 + (name in BESIDES[:2])
    ]
    config = jobs_config(jobs)
    empty = [
        name
        for name in ("ess", "rhat")
        if name in frame and name not in _wanted(config) and not frame[name].count()
    ]
    return frame.drop(columns=[*constant, *empty])


def jobs_config(jobs: Sequence[Job]) -> dict[str, Any]:
    """Return the configuration of the first job whose run exists; without any, an empty one."""
    return next((job.folder.config() for job in jobs if job.has_run), {})


def unknown_in_sweep(jobs: Sequence[Job]) -> list[str]:
    """Return a line for each metric that the experiment names for sweeps and no run of this one has.

    Without any while the metrics of the experiment are still missing, as with runtime.report=false.
    """
    spec = jobs_config(jobs).get("report") or {}
    known, has_metrics = {*_BUILT_IN, *_OF_ROWS}, not spec.get("metrics")
    for job in jobs:
        summary = (job.folder.summary() if job.has_run else None) or {}
        metrics = summary.get("metrics") or {}
        has_metrics = (has_metrics and "report" in summary) or bool(metrics)
        known |= {name.partition(".")[2] for name in metrics}
        known |= {key for results in (summary.get("methods") or {}).values() for key in results}
    return unknown_metrics(jobs_config(jobs), known, "no run of this sweep") if has_metrics else []


def keys_of(frame: pd.DataFrame) -> list[str]:
    """Return the swept settings of a sweep's table, which are its first columns."""
    return [str(name) for name in frame.columns[: list(frame.columns).index("method")]]


def headings_of(config: Mapping[str, Any], frame: pd.DataFrame) -> dict[str, str]:
    """Return the heading of each column of a sweep's table."""
    headings = dict(column_headings(config, [str(name) for name in frame.columns]))
    measure = measure_of(config)
    return headings | ({measure.floor: FLOOR[0]} if measure is not None and measure.floor in headings else {})


def meanings_of(config: Mapping[str, Any], frame: pd.DataFrame) -> dict[str, str]:
    """Return what each column of a sweep's table is."""
    if frame.empty:
        return {}
    meanings = dict(column_meanings(config, [str(name) for name in frame.columns]))
    measure = measure_of(config)
    return meanings | ({measure.floor: FLOOR[1]} if measure is not None and measure.floor in frame else {})


def drawn_columns(frame: pd.DataFrame, config: Mapping[str, Any]) -> pd.DataFrame:
    """Return the columns that the figure draws: what the experiment names for sweeps, or else acceptance and ESS."""
    named = (config.get("report") or {}).get("sweep")
    undrawn = ["rhat", *(["ess"] if named else []), SEEDS]
    return frame.drop(columns=[name for name in undrawn if name in frame and name not in (named or [])])


def floors_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the column with the noise floor of the experiment's measure, by the measure's."""
    measure = measure_of(config)
    return {measure.metric: measure.floor} if measure is not None and measure.floor else {}


def marked_methods(frame: pd.DataFrame) -> list[str]:
    """Return the methods of a sweep's table with their marks."""
    rows = zip(frame["method"], *(frame[flag] for flag in MARKS), strict=True)
    return [
        marked(name, [flag for flag, has in zip(MARKS, flags, strict=True) if has]) for name, *flags in rows
    ]


def notes_of(frame: pd.DataFrame) -> list[str]:
    """Return the notes on the marks in a sweep's table."""
    return notes(flag for flag in MARKS if frame[flag].astype(bool).any())


def rendered_sweep(
    frame: pd.DataFrame, keys: Sequence[str], headings: Mapping[str, str], error: str = "se"
) -> dict[str, str]:
    """Return the table of a sweep: as shown, with headings and marks; as CSV, with the names of metrics.

    `error` is what follows the ± of its numbers: ``se`` or ``sd``.
    """
    table, first = frame.drop(columns=list(MARKS)), (*keys, "method")[0]
    taken = {*table.columns, *headings.values()}
    names = {key: short for key, short in short_names(keys).items() if short not in taken}
    readable = table.assign(method=marked_methods(frame)).rename(columns={**headings, **names})
    readable = readable.set_index(names.get(first, first))
    head, line, rest = rendered(table.set_index(first))["csv"].partition("\n")
    return rendered(readable, "; ".join(notes_of(frame))) | {
        "csv": f"{head.replace(' (se)', f' ({error})')}{line}{rest}"
    }


def _rows(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the row of each method of a job whose run exists."""
    summary, config = job.folder.summary() or {}, job.folder.config()
    metrics = _wanted(config)
    diagnostics = (summary.get("diagnostics") or {}).get("methods") or {}
    for name, label in labels(config, summary["methods"]).items():
        diagnosis = diagnostics.get(name, {})
        results = summary["methods"][name]
        flags = flags_of(results, diagnosis)
        row: dict[str, Any] = {"method": label}
        row |= {key: _metric(summary, name, key) for key in metrics}
        built_in = {
            "ess": diagnosis.get("ess"),
            "rhat": diagnosis.get("rhat"),
            "draws_temperature": (results.get("samples") or {}).get("temperature"),
            "data_per_step": results.get("minibatch_size_mean"),
            "ess_per_million": None if flags else diagnosis.get("ess_per_million"),
            "ess_per_second": None if flags else diagnosis.get("ess_per_second"),
        }
        row |= {key: value for key, value in built_in.items() if row.get(key) is None}
        row |= {"run": job.folder.digest, **{flag: flag in flags for flag in MARKS}}
        yield _setting_columns(job.swept, (*row, SEEDS)) | row


def _wanted(config: Mapping[str, Any]) -> list[str]:
    """Return the metrics that the experiment names for sweeps; the measure's noise floor follows the measure."""
    named = dict.fromkeys(map(str, (config.get("report") or {}).get("sweep") or ["accept_rate"]))
    metrics = [name for name in named if name not in _OF_ROWS]
    measure = measure_of(config)
    if measure is not None and measure.floor and measure.metric in metrics and measure.floor not in metrics:
        metrics.insert(metrics.index(measure.metric) + 1, measure.floor)
    return metrics


def _metric(summary: Mapping[str, Any], method: str, key: str) -> Any:
    results = summary["methods"][method]
    if key == "accept_rate" and not results["n_accept_tests"]:
        return None  # a dynamics has no acceptance rate
    value = summary["metrics"].get(f"{method}.{key}", results.get(key))
    if isinstance(value, dict):
        return Estimate(*(float("nan") if value[part] is None else value[part] for part in ("value", "se")))
    return value


def _setting_columns(swept: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return swept settings by name; one that has the name of another column is called ``NAME (setting)``."""
    return {f"{key} (setting)" if key in columns else key: value for key, value in swept.items()}
