"""Tables as CSV, Markdown, LaTeX and HTML, from one frame of values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import pandas as pd

from mhrun.diagnostics.grid import Estimate
from mhrun.numbers import in_figures, scientific
from mhrun.store.files import write_text

_WRITTEN_OUT = 1e9  # counts below which a column writes all its counts out
_IN_DECIMALS = ("R-hat", "rhat")  # judged in its third decimal, whatever else is in the column


def shown(value: Any) -> str:
    """Return a value as shown: about three significant figures; an estimate with its standard error, at most five."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, Estimate):
        if not math.isfinite(value.value) or not math.isfinite(value.se):
            return shown(value.value)
        if value.se <= 1e-12 * abs(value.value):  # none, up to rounding
            return shown(value.value)
        largest = max(abs(value.value), value.se)
        places = max(0, min(15, 1 - math.floor(math.log10(value.se)), 4 - math.floor(math.log10(largest))))
        if round(value.se, places) == 0.0:  # below the fifth figure
            return shown(value.value)
        if places > 6 and 1e-300 < largest < 1e-3:  # one exponent for both: a fraction would be mostly zeros
            power = math.floor(math.log10(largest))
            scaled = Estimate(value.value / 10.0**power, value.se / 10.0**power)
            return f"({shown(scaled)})e{power}"
        return f"{value.value:,.{places}f} ± {value.se:,.{places}f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if abs(value) >= 1e7:
            return scientific(value, 3)
        if value.is_integer():
            return f"{int(value):,}"
        if 0.1 <= abs(value) < 10:
            return f"{value:.3f}"
        return in_figures(value, 3) if abs(value) < 999.5 else f"{value:,.0f}"
    return str(value)


def shown_column(heading: str, values: Iterable[Any]) -> list[str]:
    """Return the values of a column as shown, its numbers alike: three figures where any is 10 or more."""
    values = list(values)
    sizes = [abs(value) for value in values if isinstance(value, float) and math.isfinite(value)]
    if sizes and all(size.is_integer() for size in sizes):
        if max(sizes) < _WRITTEN_OUT:
            values = [
                int(value) if isinstance(value, float) and math.isfinite(value) else value for value in values
            ]
    elif sizes and max(sizes) >= 10 and heading not in _IN_DECIMALS:
        return [_in_three_figures(value) if isinstance(value, float) else shown(value) for value in values]
    return [shown(value) for value in values]


def _in_three_figures(value: float) -> str:
    if not math.isfinite(value) or not 0 < abs(value) < 999.5:
        return shown(value)
    return f"{value:#.3g}".rstrip(".")


def shown_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table of strings as shown, see `shown_column`."""
    columns = dict(enumerate(shown_column(str(heading), values) for heading, values in frame.items()))
    return pd.DataFrame(columns, index=frame.index, dtype=object).set_axis(frame.columns, axis=1)


def quoted(label: str) -> str:
    """Return a label as a list of several shows it: one that has a comma in quotation marks."""
    return f"“{label}”" if "," in label else label


def rendered(frame: pd.DataFrame, note: str = "") -> dict[str, str]:
    """Return `frame` as csv (full precision), md, tex and html (escaped); md and tex end with `note`."""
    text = shown_frame(frame)
    aligned = "l" * frame.index.nlevels + "r" * len(text.columns)
    named = all(name is not None for name in text.index.names)
    # pandas puts the name of an index into a second row of headings.
    whole = text.reset_index(allow_duplicates=True).map(str) if named else text
    latex = whole.to_latex(escape=True, column_format=aligned, index=not named)
    latex += f"% {note}\n" * bool(note)
    return {
        "csv": _numbers(frame).to_csv(),
        "md": markdown(text) + f"\n{note}\n" * bool(note),
        "tex": latex.replace("±", r"$\pm$").replace("–", "--"),
        "html": _html(text, [_is_words(values) for _, values in frame.items()]),
    }


def _is_words(values: Iterable[Any]) -> bool:
    """Return whether a column has strings, and is to be read from the left."""
    present = [value for value in values if value is not None and value == value]  # not NaN
    return bool(present) and all(isinstance(value, str) for value in present)


def _html(text: pd.DataFrame, words: Sequence[bool]) -> str:
    """Return a frame of strings as HTML, with one row of headings; columns of words have the class ``words``."""
    named = all(name is not None for name in text.index.names)
    if named:  # else the names of the index would be a row of their own
        levels = (text.index.get_level_values(place) for place in range(text.index.nlevels))
        words = [*map(_is_words, levels), *words]
        text = text.reset_index(allow_duplicates=True)
    markup = str(text.to_html(border=0, classes="table", escape=True, index=not named))
    head, line, body = markup.partition("</thead>")
    of_heads = cycle([*([] if named else [False] * text.index.nlevels), *words])
    return _marked(head, "th", of_heads) + line + _marked(body, "td", cycle(words))


def _marked(text: str, cell: str, words: Iterator[bool]) -> str:
    """Return HTML in which the cells of columns of words have the class ``words``."""
    return re.sub(f"<{cell}>", lambda _: f'<{cell} class="words">' if next(words) else f"<{cell}>", text)


def write_table(table: Mapping[str, str], path: Path) -> None:
    """Write what `rendered` returned beside `path` as .csv, .md and .tex."""
    for kind in ("csv", "md", "tex"):
        write_text(path.with_name(f"{path.name}.{kind}"), table[kind])


def markdown(text: pd.DataFrame) -> str:
    """Return a frame of strings as a Markdown table."""
    keys = [key if isinstance(key, tuple) else (key,) for key in text.index]
    rows = [
        [*(str(name or "") for name in text.index.names), *map(str, text.columns)],
        *([*map(str, key), *map(str, row)] for key, row in zip(keys, text.values, strict=True)),
    ]
    rows = [[" ".join(cell.replace("|", r"\|").split("\n")) for cell in row] for row in rows]
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines) + "\n"


def _numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """Split estimates into two columns, the value and its standard error."""
    columns: dict[str, Any] = {}
    for name, column in frame.items():
        values = list(column)
        if any(isinstance(v, Estimate) for v in values):
            columns[str(name)] = [v.value if isinstance(v, Estimate) else v for v in values]
            columns[f"{name} (se)"] = [v.se if isinstance(v, Estimate) else None for v in values]
        else:
            columns[str(name)] = values
    return pd.DataFrame(columns, index=frame.index)


def by_rows(rows: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Return a table from its rows: label -> heading -> value."""
    return pd.DataFrame.from_dict(dict(rows), orient="index")
