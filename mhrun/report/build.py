"""Builds the report of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mhrun.build import trusted, trusted_object
from mhrun.errors import UserError
from mhrun.names import checked_name
from mhrun.report.claims.judge import Judged, judge_all, paper_of
from mhrun.report.claims.rules import CLOSE
from mhrun.report.declared import experiment_function, finding_of
from mhrun.report.fresh import page_digest
from mhrun.report.guard import Guard
from mhrun.report.metrics import MetricTable, long_table, to_json
from mhrun.report.monitored import has_monitor, unknown_in_run, with_monitored
from mhrun.report.on_page import figure_on_page, notes_or_line, table_on_page
from mhrun.report.page import RESULTS, FigureOnPage, Sections, TableOnPage, write_page
from mhrun.report.run import Run
from mhrun.report.sections import EXPLAINED, FIGURES, TABLES
from mhrun.report.style import style
from mhrun.report.summary import Summary, known_diagnostics, marked_methods, summarised
from mhrun.report.tables import rendered, write_table
from mhrun.store.files import explain, remove, write_text
from mhrun.store.folder import RunFolder

PAGE = "index.html"
METRICS = "metrics.csv"
"""All metrics of a run as one long table; summary.json has them too."""


class Built(NamedTuple):
    """A report that was made."""

    page: Path
    failures: list[str]  # one line per failed part
    unknown_metrics: Sequence[str] = ()  # a line for each that ``report.sweep`` names and no method has


class Parts(NamedTuple):
    """The functions of a report: of a run, or of the runs of a sweep."""

    metrics: Callable[[Any], Any] | None
    notes: Callable[[Any], Any] | None
    tables: dict[str, Callable[[Any], Any]]
    figures: dict[str, Callable[[Any], Any]]


def reported(folder: RunFolder) -> bool:
    """Return whether a run has a complete page and everything on which it depends is unchanged."""
    mark = (folder.summary() or {}).get("report")
    return bool(mark) and (folder.report / PAGE).exists() and mark == page_digest(folder)


def build_report(
    folder: RunFolder, waiting: Callable[[str], None] = lambda message: None, *, again: bool = True
) -> Built:
    """Compute the metrics of a complete run, judge its claims, draw its tables and figures.

    Metrics and verdicts go into summary.json, everything else into report/. If a part fails, the page shows a line in
    its place and is rebuilt by the next run of the same command.

    Args:
        folder: the run, which is locked meanwhile.
        waiting: called if another process has locked it.
        again: whether to rebuild a page that is current.

    Raises:
        UserError: the run is incomplete or damaged, or the name of a table or figure is not one of a file.
    """
    _check_complete(folder)
    with folder.held(waiting):
        _check_complete(folder)  # another process may have restarted it meanwhile
        if not again and reported(folder):
            return Built(folder.report / PAGE, [])
        try:
            return _build(folder)
        except OSError as error:
            raise explain(error, folder.report) from error


def _check_complete(folder: RunFolder) -> None:
    if (reason := folder.incomplete()) is not None:
        raise UserError(reason)
    folder.check_results()


def _build(folder: RunFolder) -> Built:
    run, guard, mark = Run(folder), Guard(folder.log), page_digest(folder)
    parts = report_parts(run.config.get("report") or {}, find=found_or_failing)
    place = folder.path / ".report.partial"
    remove(place)
    place.mkdir()

    metrics, metrics_lines = guard.value(
        "metrics", "The metrics could not be computed", lambda: _metrics(parts.metrics, run), MetricTable()
    )
    undiagnosed: dict[str, dict[str, Any]] = {}
    diagnoses, _ = guard.value(
        "diagnostics", "ESS and R-hat could not be computed", lambda: known_diagnostics(run), undiagnosed
    )
    none: tuple[dict[str, Any] | None, list[Judged]] = (None, [])
    (paper, judged), claims_lines = guard.value(
        "claims", "The claims could not be judged", lambda: _judged(run.config, metrics), none
    )
    sentences: list[str] = []
    if not metrics_lines:
        sentences, _ = guard.value(
            "finding", "The finding could not be written", lambda: _finding(run), list[str]()
        )
    finding = " ".join(sentences)
    if metrics:
        write_text(place / METRICS, long_table(metrics).to_csv(index=False))
    overview = summarised(run, metrics, judged, diagnoses, finding)
    shown = [_results(overview, place)]
    of_claims = {"claims": lambda _: claims_table(judged)} if judged else {}
    tables = {"methods": costs_table} | of_claims | parts.tables
    shown += [_table(name, function, run, guard, place) for name, function in tables.items()]
    with style():
        figures = [
            figure_on_page(name, function, run, guard, place) for name, function in parts.figures.items()
        ]
        general = _general(run, parts, guard, place)
    notes = notes_or_line(parts.notes, run, guard)
    unknown = [] if parts.metrics is not None else unknown_in_run(run, metrics, diagnoses)
    sections = Sections(shown, figures, *general, notes=notes, lines=metrics_lines + claims_lines + unknown)
    write_page(place / PAGE, run, overview, paper, judged, sections)
    found = {
        "diagnostics": {"finished": run.summary.get("finished"), "methods": diagnoses, "finding": finding},
        "metrics": to_json(metrics),
        "claims": [claim._asdict() for claim in judged],
    }
    _replace(folder, place, run.summary, found if guard.failures else found | {"report": mark})
    return Built(folder.report / PAGE, guard.failures, unknown)


def _replace(folder: RunFolder, place: Path, summary: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Put a report in the place of the old one, and what it found into the summary of the run.

    The old report goes when the new one is whole. After a kill at any moment, the mark lies next to its page, or there
    is none and the page is made again.
    """
    unmarked = {key: value for key, value in summary.items() if key != "report"}
    folder.write_summary(unmarked)
    remove(folder.report)
    place.rename(folder.report)
    folder.write_summary({**unmarked, **found})


def _general(
    run: Run, parts: Parts, guard: Guard, place: Path
) -> tuple[list[TableOnPage], list[FigureOnPage]]:
    """Return the tables and figures of every run, but those whose name one of the experiment's own has."""
    if not run.methods:
        return [], []
    own_names = parts.tables.keys() | parts.figures.keys()
    left_out = {
        "pilots": not any("pilot" in summary for summary in run.methods.values()),
        "monitor": not has_monitor(run),
    }
    functions = {name: function for name, function in TABLES.items() if not left_out.get(name)}
    tables = [
        _table(n, f, run, guard, place)._replace(explained=EXPLAINED if n == "posterior" else {})
        for n, f in functions.items()
        if n not in own_names
    ]
    figures = [figure_on_page(n, f, run, guard, place) for n, f in FIGURES.items() if n not in own_names]
    return tables, figures


def _finding(run: Run) -> list[str]:
    template = finding_of(run.config)
    return template(run) if template is not None else []


def costs_table(run: Run) -> pd.DataFrame:
    """Statistics and cost of each method, over all chains.

    The step size is that of the last step, the mean over chains. Acceptance and minibatch sizes are after burn-in. An
    evaluation is the log-likelihood (or gradient) of one datum at one point: those of burn-in, of the pilot and of the
    search for the mode of a surrogate are included. Seconds include burn-in, and neither of the other two.
    """
    rows = {}
    for name, method in run.methods.items():
        rows[run.label(name)] = {
            "chains": method["chains"],
            "steps": method["steps"],
            "step size": float(np.mean(method["step_size_by_chain"]))
            if "step_size_by_chain" in method
            else None,
            "acceptance": method["accept_rate"] if method["n_accept_tests"] else None,
            "minibatch": method["minibatch_size_mean"],
            "± sd": method["minibatch_size_sd"],
            "likelihoods": float(method["likelihood_evals"]),
            "gradients": float(method["gradient_evals"] + method["reference_n_grad"]),
            "diverging": method["diverging"],
            "seconds": method["wall_s"],
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def claims_table(judged: list[Judged]) -> pd.DataFrame:
    """The paper's claims and our numbers."""
    rows = {
        claim.id: {
            "where": claim.artefact,
            "what": claim.quantity,
            "paper": claim.paper,
            "ours": claim.estimate,
            "rule": claim.rule,
            "holds": "too noisy to tell" if claim.noisy and claim.why else claim.holds,
            "verdict": claim.verdict
            + (f", {CLOSE}" if claim.close else "")
            + (f" ({claim.why})" if claim.why else ""),
        }
        for claim in judged
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def check_functions(spec: Mapping[str, Any]) -> None:
    """Find all functions that the report of a run, and that of a sweep, name.

    Args:
        spec: the node ``report`` of a configuration.

    Raises:
        UserError: one does not exist, or cannot be imported.
    """
    for prefix in ("", "sweep_"):
        report_parts(spec, prefix)


def report_parts(
    spec: Mapping[str, Any], prefix: str = "", find: Callable[[Any], Callable[[Any], Any]] | None = None
) -> Parts:
    """Return the functions that a report names, after checking that all exist.

    Args:
        spec: the node ``report`` of a configuration.
        prefix: of the keys to read: ``sweep_`` for the report of a sweep.
        find: returns the function of a name; `found_or_failing` to leave missing ones to the parts that need them.

    Raises:
        UserError: a named function does not exist, or a name is not one of a file.
    """
    find = find or _function
    groups: dict[str, dict[str, Callable[[Any], Any]]] = {}
    for group in ("tables", "figures"):
        key = prefix + group
        named = spec.get(key) or {}
        if not isinstance(named, Mapping):
            raise UserError(f"report.{key} = {named!r} must be a group of settings, NAME: FUNCTION.")
        for name in named:
            checked_name(name, f"report.{key}:")  # it becomes a file name
        groups[group] = {str(name): find(path) for name, path in named.items()}
    names = (spec.get(prefix + key) for key in ("metrics", "notes"))
    metrics, notes = (find(path) if path else None for path in names)
    return Parts(metrics, notes, groups["tables"], groups["figures"])


def found_or_failing(path: Any) -> Callable[[Any], Any]:
    """Return a report function, or in place of one that does not exist a function that raises the error."""
    try:
        return _function(path)
    except UserError as error:
        missing = error

    def failing(_: Any) -> Any:
        raise missing

    return failing


def _function(path: Any) -> Callable[[Any], Any]:
    """Return a report function: ``mint.figure1.density`` is in experiments/, anything else a trusted name."""
    module, _, name = str(path).rpartition(".")
    if module.split(".")[0] in trusted():
        function: Callable[[Any], Any] = trusted_object(str(path), "report")
        return function
    try:
        return experiment_function(module, name)
    except (ModuleNotFoundError, AttributeError) as error:
        hint = f"; if {module} is in your project, give --project DIR" if "." not in module else ""
        raise UserError(f"report: there is no '{path}' in experiments/ ({error}){hint}.") from error
    except (ImportError, SyntaxError) as error:
        raise UserError(f"report: '{path}' cannot be imported ({error}).") from error


def _metrics(function: Callable[[Run], Any] | None, run: Run) -> MetricTable:
    return with_monitored(run, MetricTable(run.cached(function) if function else {}))


def _judged(
    config: Mapping[str, Any], metrics: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, list[Judged]]:
    return paper_of(config), judge_all(config, metrics)


def _results(summary: Summary, place: Path) -> TableOnPage:
    """Return the table of methods at the head of the page."""
    content = rendered(marked_methods(summary), "; ".join(summary.notes)) | {
        "csv": rendered(summary.methods)["csv"]
    }
    if len(summary.methods):
        write_table(content, place / RESULTS)
    return TableOnPage(RESULTS, "Methods", content, summary.explained)


def _table(
    name: str, function: Callable[[Run], pd.DataFrame | str], run: Run, guard: Guard, place: Path
) -> TableOnPage:
    return table_on_page(name, function, lambda: run.cached(function), guard, place)
