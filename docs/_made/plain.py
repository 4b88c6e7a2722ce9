"""What pages have in the repository, where the site has HTML or what mkdocstrings makes: plain Markdown.

A table of claims has one line for each claim, the gallery one line for each experiment, and the reference to Python the
signature and the docstring of each class, as ``help`` prints them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import Any

import claims
import gallery
import parts
from values import MISSING, quoted

from mhrun.diagnostics.grid import Estimate
from mhrun.report.claims.rules import CLOSE
from mhrun.report.claims.verdicts import NOT_AT_SCALE
from mhrun.report.tables import shown

_WIDTH = 100  # of a signature on one line


def cell(text: Any) -> str:
    """Return words as a cell of a table has them."""
    plain = re.sub(r"``(.+?)``", r"`\1`", " ".join(str(text).split()))
    return re.sub(r"(?<!`)<(?!`)", "&lt;", plain.replace("|", r"\|").replace("*", r"\*"))


def claim_tables(paper: str) -> str:
    """Return a heading and a table for each experiment of a paper."""
    return "\n\n".join(_claims(*section) for section in claims.sections(paper))


def _claims(kind: str, experiment: str, of_it: list[dict[str, Any]], found: Mapping[str, Any] | None) -> str:
    title, anchor, command, sentence = claims.heading(kind, experiment, of_it, found)
    lines = [f'<a id="{anchor}"></a>', f"## {title}\n", f"`{command}`. {sentence}\n"]
    lines += ["| where | what | paper | here | rule | verdict |", "|---|---|--:|--:|---|---|"]
    return "\n".join([*lines, *(_claim(row) for row in claims.judged(of_it, found))])


def _claim(row: Mapping[str, Any]) -> str:
    ours, revised = row["ours"], row.get("revised")
    value = Estimate(ours, row["se"]) if ours is not None and row["se"] is not None else ours
    hint = " (its rule holds)" if row["verdict"] == NOT_AT_SCALE and row["holds"] else ""
    hint += f", {CLOSE}" if row["close"] else ""
    cells = (
        row["artefact"],
        row["quantity"] + (f" ({row['note']})" if row.get("note") else ""),
        shown(row["paper"]),
        shown(value),
        row["rule"] + (f" (‡ revised after the number was known: {revised})" if revised else ""),
        row["verdict"] + hint + (f": {row['why']}" if row["why"] else ""),
    )
    return f"| {' | '.join(map(cell, cells))} |"


def gallery_tables() -> str:
    """Return a section for each paper, with a line for each experiment."""
    sections = []
    for title, paper, experiments in gallery.by_paper():
        rows = [
            f"\n## {title}\n",
            "| experiment | what it is | finding | claims reproduced |",
            "|---|---|---|---|",
        ]
        for name in experiments:
            picture = f"images/gallery/{name}.jpg"
            there = (gallery.IMAGES.parent / picture).exists()
            count = quoted(f"count {name}")
            count = {MISSING: "" if there else "not run yet", "0 of 0": "none is judged"}.get(count, count)
            if paper in claims.papers():
                count = f"[{count or 'claims'}](papers/{claims.page_of(paper)}.md#{name})"
            what = cell(parts.experiment(name).get("title", name))
            code = f"[`{name}`]({picture})" if there else f"`{name}`"
            rows.append(f"| {code} | {what} | {cell(gallery.finding(name))} | {count} |")
        sections.append("\n".join(rows))
    return "\n".join(sections)


def layers() -> str:
    """Return the packages by layer, the highest first."""
    rows = []
    for layer in parts.floors():
        words = " ".join(what for _, what in layer)
        words = words.replace(" One per file.", "").replace("; one per file.", ".")
        rows.append(f"| {', '.join(f'`{name}`' for name, _ in layer)} | {cell(words)} |")
    return "\n".join(["| packages, the highest layer first | what they do |", "|---|---|", *rows])


def docstrings(targets: list[str], exported: Mapping[str, str]) -> str:
    """Return the signature and the docstring of each target; `exported`: target -> its name in ``import mhrun``."""
    blocks = []
    for target in targets:
        found = parts.of_package(target)
        name = target.rpartition(".")[2]
        head = f"mhrun.{name}" if target in exported else target
        text = found.docstring.value.rstrip() if found.docstring else ""
        methods = _methods(found) if found.is_class else ""
        blocks.append(f"### `{head}`\n\n```text\n{_signature(name, found)}\n\n{text}\n{methods}```")
    return "\n\n".join(blocks)


def _signature(name: str, found: Any) -> str:
    shown_parameters, keyword_only = [], False
    if found.is_class and _bases(found) & {"NamedTuple"}:
        fields = [
            each for each in found.members.values() if each.is_attribute and "property" not in each.labels
        ]
        shown_parameters = [
            f"{field.name}: {field.annotation}" + (f" = {field.value}" if field.value is not None else "")
            for field in fields
        ]
    for parameter in found.parameters:
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind.value if parameter.kind else ""
        if kind == "keyword-only" and not keyword_only:
            keyword_only = True
            shown_parameters.append("*")
        keyword_only = keyword_only or kind == "variadic positional"
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
        text = stars + parameter.name + (f": {parameter.annotation}" if parameter.annotation else "")
        if parameter.default is not None and not stars:
            text += f" = {parameter.default}" if parameter.annotation else f"={parameter.default}"
        shown_parameters.append(text)
    returns = f" -> {found.returns}" if found.is_function and found.returns else ""
    line = f"{name}({', '.join(shown_parameters)}){returns}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {text}," for text in shown_parameters), f"){returns}"])


def _bases(found: Any) -> set[str]:
    return {str(base).rpartition(".")[2] for base in found.bases}


def _methods(found: Any) -> str:
    """Return a line for each documented method of a class that others derive from; nothing of other classes."""
    if not _bases(found) & {"ABC", "Protocol", "NamedTuple"}:
        return ""
    lines = []
    for key, member in found.members.items():
        if key.startswith("_") or member.is_alias or not member.is_function or not member.docstring:
            continue
        call = textwrap.indent(_signature(key, member), "    ")
        lines.append(f"{call}\n        {member.docstring.value.splitlines()[0]}")
    return "\nMethods:\n" + "\n".join(lines) + "\n" if lines else ""
