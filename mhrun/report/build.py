"""From a run folder to its report."""

from __future__ import annotations

import inspect
import io
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from mhrun.build import trusted, trusted_object
from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError
from mhrun.paths import experiment_module
from mhrun.report.claims import Judged, judge_all, paper_of
from mhrun.report.page import FigureOnPage, TableOnPage, write_page
from mhrun.report.run import Run
from mhrun.report.style import style
from mhrun.report.tables import write_table
from mhrun.store.files import write_whole
from mhrun.store.folder import RunFolder

FORMATS = ("png", "pdf")


def build_report(folder: RunFolder) -> Path:
    """Compute the metrics of a complete run, judge its claims, draw its tables and figures.

    Metrics and verdicts go into summary.json, everything else into report/; returns the page.

    Raises:
        UserError: the run is not complete, or its report names something that is not there.
    """
    if not folder.is_complete():
        raise UserError(f"{folder.path} is not complete; run the same command again to finish it.")
    run = Run(folder)
    spec = run.config.get("report") or {}
    place = folder.path / ".report.partial"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()

    found = run.once(_function(spec["metrics"])) if spec.get("metrics") else {}
    judged = judge_all(run.config, found)
    tables = [
        _table("methods", methods_table, run, place),
        _table("claims", lambda _: claims_table(judged), run, place),
    ]
    tables[1] = tables[1]._replace(caption="The paper's claims beside ours.")
    tables += [_table(name, _function(path), run, place) for name, path in (spec.get("tables") or {}).items()]
    figures = []
    with style():
        for name, path in (spec.get("figures") or {}).items():
            figures.append(_figure(name, _function(path), run, place))
    notes = run.once(_function(spec["notes"])) if spec.get("notes") else []
    write_page(place / "index.html", run, paper_of(run.config), judged, tables, figures, notes)

    # The old report goes when the new one is whole.
    shutil.rmtree(folder.report, ignore_errors=True)
    place.rename(folder.report)
    summary = dict(run.summary)
    summary["metrics"] = _plain(found)
    summary["claims"] = [claim._asdict() for claim in judged]
    folder.write_summary(summary)
    return folder.report / "index.html"


def methods_table(run: Run) -> pd.DataFrame:
    """What each method did and what it cost, all chains together.

    Acceptance and minibatch sizes after burn-in; evaluations and seconds with it. An evaluation is the
    log-likelihood (or gradient) of one datum at one point.
    """
    rows = {}
    for name, method in run.methods.items():
        rows[run.label(name)] = {
            "chains": method["chains"],
            "steps": method["steps"],
            "acceptance": method["accept_rate"] if method["n_accept_tests"] else None,
            "minibatch": method["minibatch_size_mean"],
            "± sd": method["minibatch_size_sd"],
            "likelihoods": float(method["likelihood_evals"]),
            "gradients": float(method["gradient_evals"]),
            "diverging": method["diverging"],
            "seconds": method["wall_s"],
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def claims_table(judged: list[Judged]) -> pd.DataFrame:
    """The paper's claims beside ours."""
    rows = {
        claim.id: {
            "where": claim.artefact,
            "what": claim.quantity,
            "paper": claim.paper,
            "ours": claim.estimate,
            "rule": claim.rule,
            "holds": claim.holds,
            "verdict": claim.verdict + (f" ({claim.why})" if claim.why else ""),
        }
        for claim in judged
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def _function(path: str) -> Callable[[Run], Any]:
    """Return a report function: ``mint.figure1.density`` is in experiments/, anything else a trusted name."""
    module, _, name = path.rpartition(".")
    if module.split(".")[0] in trusted():
        found: Callable[[Run], Any] = trusted_object(path, "report")
        return found
    try:
        return getattr(experiment_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise UserError(f"report: there is no '{path}' in experiments/ ({error}).") from error


def _caption(function: Callable[..., Any]) -> str:
    return inspect.cleandoc(function.__doc__ or "")


def _table(name: str, function: Callable[[Run], pd.DataFrame], run: Run, place: Path) -> TableOnPage:
    frame = run.once(function)
    write_table(frame, place / name)
    return TableOnPage(name, _caption(function), frame)


def _figure(name: str, function: Callable[[Run], Any], run: Run, place: Path) -> FigureOnPage:
    from matplotlib import pyplot as plt

    figure = function(run)
    drawn = {}
    for kind in FORMATS:
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None)
        drawn[kind] = buffer.getvalue()
        write_whole(place / f"{name}.{kind}", lambda file, data=drawn[kind]: file.write(data))  # type: ignore[misc]
    plt.close(figure)
    return FigureOnPage(name, _caption(function), drawn["png"])


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {"value": value.value, "se": value.se} if isinstance(value, Estimate) else value
        for name, value in metrics.items()
    }
