"""The gallery: a picture, a line and a finding for each experiment; and the figures that pages show.

gallery.yaml names the figures. `take` copies them from the reports of paper-scale runs, as `make docs-results` does;
a figure of which there is no current run stays as it is.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import claims
import parts
import yaml
from PIL import Image
from values import MISSING, quoted

IMAGES = parts.ROOT / "docs" / "images"
THUMBNAIL = 480  # pixels across


@cache
def settings() -> dict[str, Any]:
    """Return gallery.yaml."""
    found: dict[str, Any] = yaml.safe_load(
        (Path(__file__).parent / "gallery.yaml").read_text(encoding="utf-8")
    )
    return found


def take(reports: Mapping[str, Path]) -> list[Path]:
    """Copy figures from the report folders of experiments, in full colour; return the files written."""
    written = []
    for name, (experiment, figure) in settings()["figures"].items():
        source = reports.get(experiment, Path()) / f"{figure}.png"
        if experiment in reports and source.exists():
            with Image.open(source) as picture:
                picture.convert("RGB").save(IMAGES / f"{name}.png", optimize=True)
            written.append(IMAGES / f"{name}.png")
    for experiment, report in reports.items():
        source = report / f"{_entry(experiment).get('figure') or _first(report)}.png"
        if source.exists():
            target = IMAGES / "gallery" / f"{experiment}.jpg"
            target.parent.mkdir(exist_ok=True)
            with Image.open(source) as picture:
                small = picture.convert("RGB")
                small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
                small.save(target, quality=85, optimize=True)
            written.append(target)
    return written


def by_paper() -> list[tuple[str, str, list[str]]]:
    """Return the title of each section of the gallery, its paper, and its experiments."""
    found: dict[str, list[str]] = {}
    for experiment in parts.names("experiment"):
        found.setdefault(_paper(experiment), []).append(experiment)
    sections = []
    for paper, experiments in found.items():
        about = claims.book(paper)["paper"] if paper in claims.papers() else None
        title = f"{claims.cited(about)}: {about['title']}" if about else "Beyond the papers"
        sections.append((title, paper, experiments))
    return sections


def finding(experiment: str) -> str:
    """Return the sentence that gallery.yaml has about an experiment."""
    return str(_entry(experiment).get("finding", ""))


def cards() -> str:
    """Return the gallery, a section for each paper."""
    sections = []
    for title, paper, experiments in by_paper():
        inner = "\n".join(_card(experiment, paper) for experiment in experiments)
        sections.append(f'## {title}\n\n<div class="gallery" data-search-exclude>\n{inner}\n</div>\n')
    return "\n".join(sections)


def _card(experiment: str, paper: str) -> str:
    head = parts.experiment(experiment)
    picture = IMAGES / "gallery" / f"{experiment}.jpg"
    title = html.escape(str(head.get("title", experiment)))
    seen = (
        f'<img src="images/gallery/{experiment}.jpg" alt="{title}" loading="lazy">'
        if picture.exists()
        else '<span class="soft">No run at paper scale yet</span>'
    )
    found = finding(experiment)
    count = quoted(f"count {experiment}")
    counted = f"{count} claims reproduced" if count != MISSING else ""
    if paper in claims.papers():
        numbers = f"papers/{claims.page_of(paper)}.html#{experiment}"
        title = f'<a href="{numbers}">{title}</a>'
        counted = f'<a href="{numbers}">{counted or "Claims"}</a>'
    counted += "." * bool(counted)
    return (
        f'<div class="card"><div class="picture">{seen}</div><p><strong>{title}</strong><br>'
        f"<code>experiment={experiment}</code></p><p>{found} {counted}</p></div>"
    )


def _entry(experiment: str) -> Mapping[str, Any]:
    return settings()["experiments"].get(experiment) or {}


def _paper(experiment: str) -> str:
    for paper in claims.papers():
        if any(experiment in (claims.book(paper).get(kind) or {}) for kind in ("experiments", "sweeps")):
            return paper
    return str((parts.experiment(experiment).get("report") or {}).get("paper") or "")


def _first(report: Path) -> str:
    """Return the name of the first figure of a report, in the order of the run's configuration."""
    config = yaml.safe_load((report.parent / "config.yaml").read_text(encoding="utf-8"))
    named = list((config.get("report") or {}).get("figures") or {})
    return next((name for name in named if (report / f"{name}.png").exists()), "")
