"""The report as one self-contained HTML page."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import yaml

from mhrun.report.claims import REPRODUCED, Judged
from mhrun.report.run import Run
from mhrun.report.tables import shown
from mhrun.store.files import write_text
from mhrun.store.identity import identity


class TableOnPage(NamedTuple):
    """A table with its caption."""

    name: str
    caption: str
    content: Mapping[str, str] | str  # what `rendered` returned, or a line in its place

    @property
    def html(self) -> str | None:
        """The table as HTML; None where there is a line in its place."""
        return None if isinstance(self.content, str) else self.content["html"]


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
        return "data:image/png;base64," + base64.b64encode(self.content).decode()


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
    shared = {table.name: table for table in tables}
    page = template("run.html.j2").render(
        title=run.config.get("title") or run.config["experiment"],
        config=run.config,
        summary=run.summary,
        paper=paper,
        claims=claims,
        reproduced=sum(claim.verdict == REPRODUCED for claim in claims),
        methods=shared["methods"],
        tables=[table for table in tables if table.name not in ("methods", "claims")],
        figures=figures,
        notes=[notes] if isinstance(notes, str) else notes,
        lines=lines,
        settings=yaml.safe_dump(identity(run.config), sort_keys=False, allow_unicode=True),
    )
    write_text(path, page)


def template(name: str) -> jinja2.Template:
    """Return a page template; everything put into it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mhrun.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": shown}
    environment.tests["missing"] = lambda value: value is None
    return environment.get_template(name)
