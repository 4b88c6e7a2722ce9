"""The report as one self-contained HTML page."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd
import yaml

from mhrun.report.claims import REPRODUCED, Judged
from mhrun.report.run import Run
from mhrun.report.tables import html, shown
from mhrun.store.files import write_text
from mhrun.store.identity import identity


class TableOnPage(NamedTuple):
    """A table with its caption."""

    name: str
    caption: str
    frame: pd.DataFrame


class FigureOnPage(NamedTuple):
    """A figure with its caption."""

    name: str
    caption: str
    png: bytes

    @property
    def source(self) -> str:
        """The picture as an address that needs no file."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


def write_page(
    path: Path,
    run: Run,
    paper: dict[str, Any] | None,
    claims: list[Judged],
    tables: list[TableOnPage],
    figures: list[FigureOnPage],
    notes: list[str],
) -> None:
    """Write the page of one run."""
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
        notes=notes,
        settings=yaml.safe_dump(identity(run.config), sort_keys=False, allow_unicode=True),
    )
    write_text(path, page)


def template(name: str) -> jinja2.Template:
    """Return a page template; everything put into it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mhrun.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": shown, "table": html}
    environment.tests["missing"] = lambda value: value is None
    return environment.get_template(name)
