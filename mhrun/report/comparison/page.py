"""The page of a comparison: its table, its figure, and all of it as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mhrun.diagnostics.grid import Estimate, number_of
from mhrun.kernels.stationary import DECLARED, EXACT
from mhrun.report.build import PAGE
from mhrun.report.comparison.agreement import AGREES, ANOTHER, DIFFERS, DIFFERS_SHORT, REFERENCE, UNKNOWN
from mhrun.report.comparison.compare import Comparison, compare
from mhrun.report.comparison.figures import error_figure, figure
from mhrun.report.comparison.rows import Row
from mhrun.report.convergence import is_finite
from mhrun.report.declared import OF_METHODS
from mhrun.report.efficiency import is_apart, named, runners_up, unconverged
from mhrun.report.on_page import draw, write_drawn
from mhrun.report.page import FigureOnPage, TableOnPage, template
from mhrun.report.style import style
from mhrun.report.summary import TARGET
from mhrun.report.tables import rendered, shown, write_table
from mhrun.store.files import explain, write_json, write_text

COLUMNS = {
    "chains": "chains",
    "draws": "draws",
    "rhat": "R-hat",
    "ess": "ESS",
    "ess_tail": "tail ESS",
    "ess_per_million": "ESS per 10^6 evaluations",
    "ess_per_second": "ESS per second",
    "acceptance": "acceptance",
    "data_per_step": "data per step",
    "evaluations": "evaluations",
    "setup": "set-up",
    "seconds": "seconds",
}
"""Headings of the table."""
_WORTH = ("rhat", "ess", "ess_tail", "ess_per_million", "ess_per_second")
EXPLAINED = {
    "chains": "Chains of the method",
    "draws": "Valid draws of each chain after burn-in",
    "rhat": "Rank-normalised split R-hat (Vehtari et al. 2021) of the coordinate where it is largest; – is undefined, "
    "as of one chain, or of a coordinate that never moves",
    "ess": "Bulk effective sample size, all chains together, of the coordinate where it is least",
    "ess_tail": "Effective sample size for the 5 % and 95 % quantiles, of the coordinate where it is least",
    "ess_per_million": "Effective sample size for each million evaluations after burn-in; – for methods that are too "
    "short to judge: R-hat above 1.01 or ESS below 400",
    "ess_per_second": OF_METHODS["ess_per_second"],
    "acceptance": OF_METHODS["accept_rate"],
    "data_per_step": OF_METHODS["data_per_step"],
    "evaluations": "Log-likelihoods of one datum at one point, or its gradient, or both from one pass; all chains "
    "together, after burn-in",
    "setup": "Log-likelihoods and gradients before the draws: search for a mode, pilot and burn-in",
    "seconds": "Seconds of all chains after burn-in, on the machine of the run",
    "verdict": "Whether means and standard deviations agree with the reference's",
    "target": TARGET[1],
    "mean_off": "Mean of the coordinate that is furthest off, in standard deviations of the reference; +- is the "
    "standard error of that coordinate alone, and by chance the worst of 100 coordinates is 2.7 of these off",
    "sd_ratio": "Standard deviation of the coordinate that is furthest off, over the reference's: 1 where they agree",
    "energy_distance": "Energy distance of all coordinates together: 0 where distributions agree, free of bias, and so "
    "below 0 by chance; where they agree, +- is up to 1.5 times too large",
}
DISTANCES = {
    "verdict": "verdict",
    "target": "target",
    "mean_off": "mean off by (sd)",
    "sd_ratio": "sd (ratio)",
    "energy_distance": "energy distance",
}


_CAPTION = (
    "Colours are runs. A mark is hollow where R-hat is undefined or above 1.01, or ESS below 400: too short to "
    "judge. "
)
_OF_DISTANCES = (
    "Distances have two standard errors. An open arrow is the upper end of a distance that does not differ "
    "significantly from 0; one of 0 or less is so by chance. "
)
_OF_ERRORS = (
    "Error against cost\n"
    "Means and standard deviations from the first draws of all chains, in standard deviations of the reference: root "
    "mean squares over the coordinates, against the evaluations after burn-in that the draws cost. Twice the "
    "evaluations divide an error by the square root of 2, until the method's bias remains, or the error of the "
    "reference (dashed)."
)


def table(found: Comparison) -> pd.DataFrame:
    """Return a row for each method, with the headings that are shown; empty columns are left out."""
    columns = COLUMNS | (DISTANCES if found.reference else {})
    frame = pd.DataFrame(
        [[_shown_value(row, key) for key in columns] for row in found.rows.values()],
        index=list(found.rows),
        columns=list(columns.values()),
        dtype=object,
    )
    return frame.loc[:, [any(v is not None for v in frame[name]) for name in frame.columns]]


def _shown_value(row: Mapping[str, Any], key: str) -> Any:
    """Return a value of a row, None for the efficiency of a method that is too short to judge."""
    return None if key in ("ess_per_million", "ess_per_second") and unconverged(row) else row.get(key)


def parts(frame: pd.DataFrame, rule: str = "") -> list[TableOnPage]:
    """Return the table in two that fit a page: what draws are worth and how far off they are, and what they cost.

    Args:
        frame: as `table` returns it.
        rule: of the verdicts, `Comparison.rule`.
    """
    names = COLUMNS | DISTANCES
    first = ("verdict", "target")
    worth_names = [names[key] for key in (*first, *_WORTH, *(k for k in DISTANCES if k not in first))]
    tables = []
    for name, title, columns in (
        ("worth", "What the draws are worth", [c for c in worth_names if c in frame.columns]),
        ("cost", "What they cost", [c for c in frame.columns if c not in worth_names]),
    ):
        if columns:
            explained = {names[key]: meaning for key, meaning in EXPLAINED.items() if names[key] in columns}
            if rule and names["verdict"] in columns:
                explained[names["verdict"]] = rule
            tables.append(TableOnPage(name, title, rendered(frame[columns]), explained))
    return tables


def finding(found: Comparison) -> str:
    """Return the verdicts, if there is a reference, and a sentence on the most efficient method that has converged."""
    by_verdict: dict[str, list[str]] = {}
    for name, row in found.rows.items():
        by_verdict.setdefault(str(row.get("verdict", "")), []).append(name)
    texts = (
        (AGREES, f"{{}} with {{}} (to {found.precision:g} sd)"),
        (DIFFERS, "{} from {}"),
        (DIFFERS_SHORT, "{} from {} in a short run"),
        (UNKNOWN, "no verdict on {} against {}"),
    )
    verbs = {
        AGREES: ("agrees", "agree"),
        DIFFERS: ("differs", "differ"),
        DIFFERS_SHORT: ("differs", "differ"),
        UNKNOWN: ("", ""),
    }
    clauses = []
    for verdict, text in texts:
        if methods := by_verdict.get(verdict):
            count = f"{len(methods)} method{'s' * (len(methods) != 1)} ({named(methods)})"
            subject = f"{count} {verbs[verdict][len(methods) != 1]}".strip()
            clauses.append(text.format(subject, found.reference))
    sentences = [f"{_capital('; '.join(clauses))}."] if clauses else []
    return " ".join(filter(None, (*sentences, _most_efficient(found))))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _most_efficient(comparison: Comparison) -> str:
    rates = {
        name: number_of(row["ess_per_million"])
        for name, row in comparison.rows.items()
        if is_finite(row.get("ess_per_million"))
    }
    all_rhats = {name: number_of(row.get("rhat")) for name, row in comparison.rows.items()}
    rated = {
        name: rate
        for name, rate in rates.items()
        if not is_apart(all_rhats[name]) and is_finite(all_rhats[name])
    }
    eligible = {name: rate for name, rate in rated.items() if _is_right(comparison.rows[name])}
    wrong = 0 < len(eligible) < len(rated)
    rated = eligible or rated
    targets = {str(comparison.rows[name].get("target")) for name in rated}
    exact = " or ".join(sorted(targets & {EXACT, DECLARED})) or EXACT
    if not rated:
        rhats = [number_of(row.get("rhat")) for row in comparison.rows.values() if is_finite(row.get("rhat"))]
        return f"No method has converged: R-hat is {shown(min(rhats))} at least." if rhats else ""
    best = max(rated, key=lambda name: rated[name])
    start = f"{best} has {shown(rated[best])} effective draws per million evaluations"
    row = comparison.rows[best]
    if (setup := number_of(row.get("setup"))) > (cost := number_of(row.get("evaluations"))):
        start += f" after its set-up ({shown(1e6 * number_of(row['ess']) / (cost + setup))} with it)"
    other_rates = sorted(rate for name, rate in rated.items() if name != best)
    rivals = runners_up(rated[best], rates, all_rhats)
    if not other_rates and wrong:
        kind = (
            f"method that is {exact} or agrees" if comparison.reference else f"{exact} method that converged"
        )
        return f"{start}, the only {kind}{rivals}."
    if not other_rates:
        return f"{start}{', and no other method has converged' * (len(comparison.rows) > 1)}{rivals}."
    ratio = shown(rated[best] / other_rates[-1])
    condition = (
        f"are {exact} or agree"
        if comparison.reference and wrong
        else f"are {exact}"
        if wrong
        else "have converged"
    )
    return f"{start}, {ratio} times as many as the next of {len(rated)} that {condition}{rivals}."


def _is_right(row: Mapping[str, Any]) -> bool:
    """Return whether a method is exact or agrees with the reference.

    One with another target, or a verdict that it differs, is not; without a reference, only exact methods are.
    """
    verdict = row.get("verdict")
    if verdict in (DIFFERS, DIFFERS_SHORT, ANOTHER):
        return False
    return verdict in (AGREES, REFERENCE) or row.get("target") in (EXACT, DECLARED)


def plain_rows(found: Comparison) -> dict[str, Any]:
    """Return a comparison for JSON."""
    rows = {
        name: {
            key: {"value": value.value, "se": value.se} if isinstance(value, Estimate) else value
            for key, value in row.items()
        }
        for name, row in found.rows.items()
    }
    return {"reference": found.reference, "runs": found.runs, "methods": rows, "notes": found.notes}


def build_comparison(
    rows: Sequence[Row],
    reference: Row | None,
    outputs: Path,
    tolerance: float | None,
    evaluations: float | None,
) -> tuple[Comparison, Path]:
    """Write the page of a comparison into ``<outputs>/compare/<digest>/``; return the comparison and the page's path.

    Raises:
        UserError: see `compare`; or the folder cannot be written.
    """
    comparison = compare(rows, reference, tolerance, evaluations)
    rows_shown = [(row.run.folder.digest, row.method) for row in [*rows, *([reference] if reference else [])]]
    identity = [rows_shown, reference is not None, *([tolerance] if tolerance else [])]
    identity += [f"{evaluations} evaluations"] if evaluations is not None else []
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    place = outputs / "compare" / digest
    make_folder(place)
    frame = table(comparison)
    shown_table = rendered(frame)
    write_table(shown_table, place / "compare")
    write_json(place / "compare.json", plain_rows(comparison))
    with style():
        drawn = draw(lambda: figure(comparison), "compare")
        errors = draw(lambda: error_figure(comparison), "errors") if comparison.reference else None
    for name, content in (("compare", drawn), ("errors", errors)):
        if content is not None and not isinstance(content, str):
            write_drawn(content, place / name)
    runs = pd.DataFrame.from_dict(comparison.runs, orient="index")
    whole_table = TableOnPage("compare", "", shown_table)
    page = template("compare.html.j2").render(
        title=f"{' and '.join(comparison.runs)}{f' against {comparison.reference}' if comparison.reference else ''}",
        finding=finding(comparison),
        tables=parts(frame, comparison.rule),
        files=whole_table.files,
        figure=FigureOnPage("compare", "", drawn),
        errors=None if errors is None else FigureOnPage("errors", _OF_ERRORS, errors),
        rule=comparison.rule,
        caption=_CAPTION + (_OF_DISTANCES if comparison.reference else ""),
        runs=rendered(runs)["html"],
        notes=comparison.notes,
    )
    write_text(place / PAGE, page)
    return comparison, place / PAGE


def make_folder(place: Path) -> None:
    """Make a folder.

    Raises:
        UserError: it cannot be created.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain(error, place) from error
