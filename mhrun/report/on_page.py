"""Tables, figures and notes of a page: made and written, or a line in the place of one that fails."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from mhrun.report.guard import NO_FIGURE, NO_TABLE, Guard
from mhrun.report.page import FigureOnPage, TableOnPage
from mhrun.report.svg import inline_svg
from mhrun.report.tables import rendered, write_table
from mhrun.store.files import write_whole

FORMATS = ("png", "pdf")


def caption_of(function: Callable[..., Any]) -> str:
    """Return the caption of a report function: its docstring."""
    return inspect.cleandoc(function.__doc__ or "")


def table_on_page(
    name: str, function: Callable[..., Any], make: Callable[[], pd.DataFrame | str], guard: Guard, place: Path
) -> TableOnPage:
    """Write a table into a folder, and return it, or a line in its place, with its function's caption."""

    def content() -> dict[str, str] | str:
        table = make()
        return table if isinstance(table, str) else rendered(table)

    made = guard(name, NO_TABLE, content)
    if not isinstance(made, str):
        write_table(made, place / name)
    return TableOnPage(name, caption_of(function) or name, made)


def figure_on_page(
    name: str, function: Callable[[Any], Any], seen: Any, guard: Guard, place: Path
) -> FigureOnPage:
    """Draw a figure of a run, or of runs, into a folder, and return it, or a line in its place, with its caption."""
    drawn = guard(name, NO_FIGURE, lambda: draw(lambda: function(seen), name))
    if not isinstance(drawn, str):
        write_drawn(drawn, place / name)
    return FigureOnPage(name, caption_of(function) or name, drawn)


def notes_or_line(notes: Callable[[Any], Any] | None, seen: Any, guard: Guard) -> list[str]:
    """Return the notes of a function on a run, or on runs, or a line in their place; none without a function."""
    found, lines = guard.value(
        "notes", "The notes could not be made", lambda: list(notes(seen)) if notes else [], list[str]()
    )
    return found + lines


def draw(make: Callable[[], Any], name: str) -> dict[str, bytes] | str:
    """Return a figure in each format, and as SVG for a page where it is one of lines, points and bars.

    If there is nothing to draw, return the line that `make` gives instead. `name` is unique on the page.
    """
    from matplotlib import pyplot as plt

    before = set(plt.get_fignums())
    try:
        figure = make()
        if isinstance(figure, str):
            return figure
        drawn, frame = {}, tight_frame(figure)
        for kind in FORMATS:
            buffer = io.BytesIO()
            metadata = {"CreationDate": None} if kind == "pdf" else None
            figure.savefig(buffer, format=kind, bbox_inches=frame, metadata=metadata)
            drawn[kind] = buffer.getvalue()
        if (svg := inline_svg(figure, name, frame)) is not None:
            drawn["svg"] = svg.encode()
        return drawn
    finally:
        for number in set(plt.get_fignums()) - before:
            plt.close(number)


def tight_frame(figure: Figure) -> Bbox:
    """Return the smallest frame, in inches, that holds a figure and all its text, with the usual margin.

    The figure is laid out here, once. matplotlib would do so again for each format that it is saved in, which takes as
    long as drawing it.
    """
    figure.set_dpi(mpl.rcParams["savefig.dpi"])
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure.get_tightbbox().padded(mpl.rcParams["savefig.pad_inches"])


def write_drawn(drawn: Mapping[str, bytes], path: Path) -> None:
    """Write a figure beside `path` in each format."""
    for kind in FORMATS:
        content = drawn[kind]
        write_whole(path.with_name(f"{path.name}.{kind}"), lambda file, data=content: file.write(data))  # type: ignore[misc]
