"""The report as one self-contained HTML page."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import yaml

from mhrun.report.claims import Judged, count
from mhrun.report.run import Run
from mhrun.report.tables import shown
from mhrun.store.files import write_text
from mhrun.store.identity import identity


class FileOnPage(NamedTuple):
    """A file that the page holds, to be saved from it."""

    kind: str  # for people
    name: str
    address: str


_SHORT = re.compile(r"<td>([^<]{1,20})</td>")
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

    @property
    def html(self) -> str | None:
        """The table as HTML; None where there is a line in its place."""
        # A number is not to be parted at its sign or its exponent where lines are broken.
        return (
            None
            if isinstance(self.content, str)
            else _SHORT.sub(r'<td class="short">\1</td>', self.content["html"])
        )

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
    content: bytes | str  # a PNG, or a line in its place

    @property
    def source(self) -> str | None:
        """The picture as an address that needs no file; None where there is a line in its place."""
        if isinstance(self.content, str):
            return None
        return _address("image/png", self.content)


def _address(media: str, content: bytes) -> str:
    return f"data:{media};base64,{base64.b64encode(content).decode()}"


def whole(text: str) -> str:
    """Return a text whose numbers are not parted from their standard errors where lines are broken."""
    return text.replace(" ± ", "\u00a0±\u00a0")


def write_page(
    path: Path,
    run: Run,
    paper: dict[str, Any] | None,
    claims: list[Judged],
    tables: list[TableOnPage],
    figures: list[FigureOnPage],
    notes: list[str] | str,
    lines: list[str],
) -> None:
    """Write the page of one run; `lines` stand where the claims are."""
    shown_tables = sorted(
        (table for table in tables if table.name != "claims" and (table.name != "methods" or run.methods)),
        key=lambda table: table.name != "methods",
    )
    page = template("run.html.j2").render(
        title=run.config.get("title") or run.config["experiment"],
        config=run.config,
        summary=run.summary,
        paper=paper,
        claims=claims,
        totals=count(claim.verdict for claim in claims),
        tables=shown_tables,
        figures=figures,
        contents=_contents(claims, figures, shown_tables, bool(notes)),
        notes=[notes] if isinstance(notes, str) else notes,
        lines=lines,
        settings=yaml.safe_dump(identity(run.config), sort_keys=False, allow_unicode=True),
    )
    write_text(path, page)


def _contents(
    claims: list[Judged], figures: list[FigureOnPage], tables: list[TableOnPage], notes: bool
) -> list[tuple[str, str]]:
    """Return the anchors of a page in order, each with its heading."""
    return [
        *([("claims", "Claims")] if claims else []),
        *((f"figure-{figure.name}", figure.caption.split("\n")[0]) for figure in figures),
        *((f"table-{table.name}", table.caption.split("\n")[0]) for table in tables),
        *([("notes", "What to know beside the numbers")] if notes else []),
        ("settings", "Settings"),
    ]


def template(name: str) -> jinja2.Template:
    """Return a page template; everything put into it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mhrun.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": shown, "whole": whole}
    environment.tests["missing"] = lambda value: value is None
    return environment.get_template(name)
