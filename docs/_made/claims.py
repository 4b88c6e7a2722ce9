"""The claims of the papers as tables: what claims.yaml asks, beside what docs/results says was found."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import yaml
from parts import ROOT

from mhrun.diagnostics.grid import Estimate
from mhrun.report.claims.judge import claims_of, without_run
from mhrun.report.claims.rules import CLOSE, describe_rule, is_close
from mhrun.report.claims.verdicts import (
    CLASSES,
    COUNTED,
    FAILED,
    JUDGED,
    NOT_AT_SCALE,
    NOT_JUDGED,
    NOT_REPRODUCED,
    PASSED,
    REPRODUCED,
    UNCHECKED,
    count,
)
from mhrun.report.tables import shown
from mhrun.store.identity import RESULTS_VERSION

_KINDS = {"experiments": "", "sweeps": ", the sweep"}
SEED, EXACT = "seed", "exact"
GROUPS = {SEED: "all five papers", EXACT: "all papers on exact sampling"}
"""Groups of papers, each with its own totals, and what a table calls their sum."""


def papers(group: str = "") -> list[str]:
    """Return the papers that there are claims of, or those of a group: ``seed``, the five papers, or ``exact``."""
    found = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/claims.yaml"))
    return [paper for paper in found if group in ("", group_of(paper))]


def group_of(paper: str) -> str:
    """Return the group that a paper is counted with, `group` in its claims.yaml: one of `GROUPS`."""
    return str(book(paper)["paper"].get("group", SEED))


def page_of(paper: str) -> str:
    """Return the page of docs/papers that has the claims of a paper; its own unless claims.yaml names another."""
    return str(book(paper)["paper"].get("page", paper))


@cache
def book(paper: str) -> dict[str, Any]:
    """Return the claims of a paper."""
    found: dict[str, Any] = yaml.safe_load(
        (ROOT / "experiments" / paper / "claims.yaml").read_text(encoding="utf-8")
    )
    return found


@cache
def results(paper: str) -> dict[str, Any]:
    """Return what paper-scale runs found of them; nothing where none was written down."""
    path = ROOT / "docs" / "results" / f"{paper}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def stale(paper: str) -> Iterator[str]:
    """Yield a line for each result that was judged by another rule than the one that stands now."""
    for kind, experiment, claims, found in sections(paper):
        if found and found.get("results_version") != RESULTS_VERSION:
            yield (
                f"{paper}, {experiment} ({kind}): its results are of version {found.get('results_version')}, and the "
                f"code is at {RESULTS_VERSION}; run it again, then `make docs-results`."
            )
        by_id = {claim["id"]: claim for claim in claims}
        for judged in (found or {}).get("claims", []):
            claim = by_id.get(judged["id"])
            if claim is not None and (judged["verdict"] not in _possible(claim)):
                yield (
                    f"{paper}, {experiment} ({kind}): '{judged['id']}' has the verdict '{judged['verdict']}', which "
                    "claims.yaml does not allow now; run `make docs-results` where its run is."
                )
            if claim is None or describe_rule(claim["rule"]) != judged["rule"]:
                yield (
                    f"{paper}, {experiment} ({kind}): '{judged['id']}' was judged by '{judged['rule']}', which is not "
                    f"what "
                    "claims.yaml says now; run `make docs-results` where its run is."
                )


def _possible(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the verdicts that a claim may have."""
    if claim["not_judged"]:
        return (NOT_JUDGED,)
    return (PASSED, FAILED, UNCHECKED) if claim.get("self_check") else COUNTED


def verdicts(paper: str) -> Counter[str]:
    """Return how many claims of a paper have which verdict."""
    return Counter(row["verdict"] for *_, claims, found in sections(paper) for row in judged(claims, found))


def totals(group: str = SEED) -> Counter[str]:
    """Return how many claims of the papers of a group have which verdict."""
    return sum((verdicts(paper) for paper in papers(group)), Counter())


def rows(paper: str, kind: str, experiment: str) -> dict[str, dict[str, Any]]:
    """Return the claims of an experiment with what was found: id -> row, `run` being the run it is of."""
    return {
        row["id"]: row | {"run": (found or {}).get("run")}
        for section, name, claims, found in sections(paper)
        if (section, name) == (kind, experiment)
        for row in judged(claims, found)
    }


def rows_of_experiment(experiment: str) -> list[dict[str, Any]]:
    """Return all rows of an experiment and of its sweep, whatever paper they are of."""
    return [row for paper in papers() for kind in _KINDS for row in rows(paper, kind, experiment).values()]


def tables(paper: str) -> str:
    """Return a heading and a table for each experiment of a paper."""
    return "\n".join(_section(*section) for section in sections(paper))


def overview(folder: str = "", group: str = SEED) -> str:
    """Return one row for each paper of a group; `folder`: where its page is from here."""
    lines = [
        "| paper | reproduced | not reproduced | not run at paper scale | not judged | self-checks passed |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for paper in papers(group):
        about, found = book(paper)["paper"], verdicts(paper)
        lines.append(
            f"| [{cited(about)}]({folder}{page_of(paper)}.md): {about['title']} | {_counts(found)} |"
        )
    lines.append(f"| **{GROUPS[group]}** | {_counts(totals(group))} |")
    return "\n".join(lines)


def cited(about: Mapping[str, Any]) -> str:
    """Return how a paper is cited in a text: "Li & Wong 2017"."""
    last = [author.split()[-1] for author in about["authors"].split(", ")]
    names = " & ".join(last) if len(last) < 3 else f"{last[0]} et al."
    return f"{names} {about['year']}"


def scoreboard(folder: str = "") -> str:
    """Return one short row for each of the five papers; `folder`: where its page is from here."""
    lines = ["| paper | reproduced | not reproduced | not run yet |", "|---|--:|--:|--:|"]
    for paper in papers(SEED):
        about, found = book(paper)["paper"], verdicts(paper)
        lines.append(
            f"| [{cited(about)}]({folder}{page_of(paper)}.md): {about['title']} "
            f"| {found[REPRODUCED]} | {found[NOT_REPRODUCED]} | {found[NOT_AT_SCALE]} |"
        )
    return "\n".join(lines)


def _counts(found: Mapping[str, int]) -> str:
    cells = [str(found[verdict]) for verdict in (REPRODUCED, NOT_REPRODUCED, NOT_AT_SCALE, NOT_JUDGED)]
    checks = found[PASSED] + found[FAILED] + found[UNCHECKED]
    return " | ".join([*cells, f"{found[PASSED]} of {checks}"])


def sections(paper: str) -> Iterator[tuple[str, str, list[dict[str, Any]], dict[str, Any] | None]]:
    """Yield kind, experiment, claims and results of each section of a paper's page."""
    for kind in _KINDS:
        for experiment, node in (book(paper).get(kind) or {}).items():
            yield kind, experiment, claims_of(node), (results(paper).get(kind) or {}).get(experiment)


def judged(claims: list[dict[str, Any]], found: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the claims of an experiment, each with what was found."""
    results = {row["id"]: row for row in (found or {}).get("claims", [])}

    def row(claim: dict[str, Any]) -> dict[str, Any]:
        empty: dict[str, Any] = {"ours": None, "se": None, "holds": None}
        empty |= {"verdict": without_run(claim), "why": claim["not_judged"]}
        found = results.get(claim["id"], empty)
        close = found["verdict"] in JUDGED and is_close(claim["rule"], found["ours"], found["se"])
        return claim | {"rule": describe_rule(claim["rule"]), "close": close} | found

    return [row(claim) for claim in claims]


def heading(
    kind: str, experiment: str, claims: list[dict[str, Any]], found: Mapping[str, Any] | None
) -> tuple[str, str, str, str]:
    """Return the title of an experiment's section, its anchor, the command, and a sentence about the run."""
    reproduced, counted = count(row["verdict"] for row in judged(claims, found))
    command = "mhrun" if kind == "experiments" else "mhrun -m"
    over = {key: value for key, value in _over(experiment).items() if kind == "sweeps"}
    words = [
        f"experiment={experiment}",
        "scale=paper",
        *(f"{k}={','.join(map(str, v))}" for k, v in over.items()),
    ]
    sentence = (
        f"{reproduced} of {counted} reproduced. Run {found['run']}, finished {found['finished']}, "
        f"results version {found['results_version']}, mhrun {found['version']}, seed {found['seed']}."
        if found
        else "Not run at the paper's scale yet."
    )
    anchor = f"{experiment}{'-sweep' if kind == 'sweeps' else ''}"
    return f"{_title(experiment)}{_KINDS[kind]}", anchor, f"{command} {' '.join(words)}", sentence


def _section(
    kind: str, experiment: str, claims: list[dict[str, Any]], found: Mapping[str, Any] | None
) -> str:
    title, anchor, command, sentence = heading(kind, experiment, claims, found)
    head = "".join(f"<th>{name}</th>" for name in ("where", "what", "paper", "here", "rule", "verdict"))
    body = "".join(_row(row) for row in judged(claims, found))
    return (
        f"\n## {title} {{ #{anchor} }}\n\n```bash\n{command}\n```\n\n{sentence}\n\n"
        f"<table data-search-exclude><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>\n"
    )


def _row(row: Mapping[str, Any]) -> str:
    ours = row["ours"]
    value = Estimate(ours, row["se"]) if ours is not None and row["se"] is not None else ours
    note = f"<br><span class='soft'>{_text(row['note'])}</span>" if row.get("note") else ""
    why = f"<br><span class='soft'>{_text(row['why'])}</span>" if row["why"] else ""
    revised = row.get("revised")
    mark = (
        f"<br><span class='soft'>‡ Revised after the number was known: {_text(revised)}</span>"
        if revised
        else ""
    )
    hint = " (its rule holds)" if row["verdict"] == NOT_AT_SCALE and row["holds"] else ""
    hint += f"<br><span class='soft'>{CLOSE}</span>" if row["close"] else ""
    cells = (
        _text(row["artefact"]),
        _text(row["quantity"]) + note,
        _text(shown(row["paper"])),
        _text(shown(value)),
        _text(row["rule"]) + mark,
        f"<span class='{CLASSES.get(row['verdict'], 'soft')}'>{row['verdict']}</span>{hint}{why}",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _over(experiment: str) -> dict[str, Any]:
    for paper in papers():
        found = (book(paper).get("sweeps") or {}).get(experiment)
        if found:
            return dict(found.get("over") or {})
    return {}


def _title(experiment: str) -> str:
    path = ROOT / "conf" / "experiment" / f"{experiment}.yaml"
    head = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    return str((head or {}).get("title") or experiment)


def _text(value: Any) -> str:
    return html.escape(str(value)).replace("\n", " ")
