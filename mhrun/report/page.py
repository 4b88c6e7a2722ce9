"""The report as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import yaml

from mhrun.report.claims.evidence import Evidence
from mhrun.report.claims.judge import Judged
from mhrun.report.claims.rules import CLOSE
from mhrun.report.claims.verdicts import CLASSES, count
from mhrun.report.picture import lighter
from mhrun.report.run import Run
from mhrun.report.summary import Summary
from mhrun.report.tables import shown
from mhrun.store.files import write_text
from mhrun.store.identity import identity

RESULTS = "results"
"""The name of the table of methods that a report begins with."""


class FileOnPage(NamedTuple):
    """A file that the page holds, to be saved from it."""

    kind: str  # as shown, such as CSV
    name: str
    address: str


_SHORT_CELL = re.compile(r'<td(?: class="(words)")?>([^<]{1,20})</td>')
_SCROLLING_ROWS = 14  # rows from which on a table scrolls within the page
_KINDS = {
    "csv": ("CSV", "text/csv"),
    "md": ("Markdown", "text/markdown"),
    "tex": ("LaTeX", "application/x-tex"),
}


class TableOnPage(NamedTuple):
    """A table with its caption."""

    name: str
    caption: str
    content: Mapping[str, str] | str  # what `rendered` returned, or a line in its place
    explained: Mapping[str, str] = {}  # heading -> what its column is

    @property
    def html(self) -> str | None:
        """The table as HTML, each heading with what its column is; None where there is a line in its place."""
        if isinstance(self.content, str):
            return None
        # Lines are not broken at the sign or the exponent of a number.
        page = _SHORT_CELL.sub(
            lambda cell: f'<td class="{"words short" if cell[1] else "short"}">{cell[2]}</td>',
            self.content["html"],
        )
        for heading, meaning in self.explained.items():
            name = html.escape(heading, quote=False)
            for start in ("<th", '<th class="words"'):
                title = html.escape(meaning)
                page = page.replace(f"{start}>{name}</th>", f'{start} title="{title}">{name}</th>', 1)
        return page

    @property
    def is_long(self) -> bool:
        """Whether the table has more rows than fit beside other things."""
        return not isinstance(self.content, str) and self.content["html"].count("<tr") > _SCROLLING_ROWS

    @property
    def files(self) -> list[FileOnPage]:
        """The table in its other forms, in addresses that need no file: a page that was mailed has them too."""
        if isinstance(self.content, str):
            return []
        return [
            FileOnPage(kind, f"{self.name}.{end}", _address(media, self.content[end].encode()))
            for end, (kind, media) in _KINDS.items()
        ]


class FigureOnPage(NamedTuple):
    """A figure with its caption."""

    name: str
    caption: str
    content: Mapping[str, bytes] | str  # what `draw` returned, or a line in its place

    @property
    def is_drawn(self) -> bool:
        """Whether there is a figure, and no line in its place."""
        return not isinstance(self.content, str)

    @property
    def svg(self) -> str:
        """The figure as an SVG element; empty where it is a picture, or there is a line in its place."""
        return "" if isinstance(self.content, str) else self.content.get("svg", b"").decode()

    @property
    def source(self) -> str | None:
        """The picture as an address that needs no file; None where there is a line in its place."""
        if isinstance(self.content, str):
            return None
        return _address("image/png", lighter(self.content["png"]))


def _address(media: str, content: bytes) -> str:
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def whole(text: str) -> str:
    """Return a text whose numbers are not parted from their standard errors where lines are broken."""
    return text.replace(" ± ", "\u00a0±\u00a0")


class Sections(NamedTuple):
    """What the page of a run has besides its summary."""

    tables: list[TableOnPage]  # the experiment's, that of methods and that of claims
    figures: list[FigureOnPage]  # the experiment's
    general_tables: list[TableOnPage]  # which every run has
    general_figures: list[FigureOnPage]
    notes: list[str]
    lines: list[str]  # below what was found, in place of what could not be made


def write_page(
    path: Path,
    run: Run,
    found: Summary,
    paper: dict[str, Any] | None,
    claims: list[Judged],
    sections: Sections,
) -> None:
    """Write the page of one run.

    Args:
        path: of the file.
        run: the run.
        found: its summary.
        paper: of its experiment, or None.
        claims: judged.
        sections: tables, figures and notes.
    """
    tables, figures, general_tables, general_figures, notes, lines = sections
    shown_tables = [table for table in tables if table.name not in ("claims", RESULTS)]
    shown_tables.sort(key=lambda table: table.name == "methods")  # what the methods cost, last
    if not run.methods:
        shown_tables = [table for table in shown_tables if table.name != "methods"]
    results = next((table for table in tables if table.name == RESULTS and run.methods), None)
    page = template("run.html.j2").render(
        title=found.title,
        found=found,
        config=run.config,
        summary=run.summary,
        paper=paper,
        claims=claims,
        **claims_context(found.status, claims),
        tables=shown_tables,
        results=results,
        figures=figures,
        general_tables=general_tables,
        general_figures=general_figures,
        contents=_contents(
            claims, [*figures, *general_figures], [*shown_tables, *general_tables], bool(notes)
        ),
        notes=notes,
        lines=lines,
        arithmetic=arithmetic_of_methods(run),
        settings=yaml.safe_dump(identity(run.config), sort_keys=False, allow_unicode=True),
    )
    write_text(path, page)


def arithmetic_of_methods(run: Run) -> str:
    """Return the number formats of the methods; after the labels of its methods where there are several."""
    methods: dict[str, list[str]] = {}
    for name, summary in run.methods.items():
        methods.setdefault(summary["arithmetic"], []).append(run.label(name))
    if len(methods) < 2:
        return "".join(methods)
    return "; ".join(f"{texts} ({', '.join(labels)})" for texts, labels in methods.items())


def claims_context(status: Evidence, claims: list[Judged]) -> dict[str, Any]:
    """Return the template variables of the section of claims: status, totals, classes of verdicts, reasons, errors."""
    general = ("other settings", "another sweep", "settings could not")
    reasons = dict.fromkeys(claim.why for claim in claims if claim.why.startswith(general))
    return {
        "status": status,
        "totals": count(claim.verdict for claim in claims),
        "classes": CLASSES,
        "close": CLOSE,
        "common": list(reasons),
        "has_errors": any("±" in shown(claim.estimate) for claim in claims),
    }


def _contents(
    claims: list[Judged], figures: list[FigureOnPage], tables: list[TableOnPage], notes: bool
) -> list[tuple[str, str]]:
    """Return the anchors of a page in order, each with its heading."""
    return [
        *([("claims", "Claims")] if claims else []),
        *((f"figure-{figure.name}", figure.caption.split("\n")[0]) for figure in figures),
        *((f"table-{table.name}", table.caption.split("\n")[0]) for table in tables),
        *([("notes", "Caveats")] if notes else []),
        ("settings", "Settings"),
    ]


def template(name: str) -> jinja2.Template:
    """Return a page template; everything put into it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mhrun.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": shown, "whole": whole}
    environment.tests["missing"] = lambda value: value is None
    environment.globals |= {"script": _script(), "script_hash": _digest_of_script()}
    return environment.get_template(name)


@cache
def _script() -> str:
    """Return the script of all pages; it has no character that HTML would read otherwise."""
    return resources.files("mhrun.report").joinpath("templates/page.js").read_text(encoding="utf-8")


@cache
def _digest_of_script() -> str:
    """Return the hash by which a page's security policy lets this script run, and no other."""
    digest = hashlib.sha256(_script().encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
