"""Every warning has its place on the page `docs/warnings.md`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from mhrun.paths import PACKAGE

PAGE = PACKAGE.parent / "docs" / "warnings.md"
# Functions that return lines of warnings.
_MAKERS = re.compile(
    r"warnings(_of)?$|^tempered$|^improper$|^without_variance$|^modes_missed$|^_advice$|^far_away$|^large_draws$"
)
_ENOUGH = 20  # characters of a text that identify a warning


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield the longest piece without values of each string in a tree, but for docstrings."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
        constants = [
            one.value for one in pieces if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ]
        if constants and id(node) not in inside | statements:
            yield max(constants, key=len).strip()


def _warned(source: str) -> set[str]:
    """Return what identifies the warnings of a module: of functions named after them, and of calls of ``warn``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        makes = isinstance(node, ast.FunctionDef) and _MAKERS.search(node.name)
        if isinstance(node, ast.Call):
            makes = getattr(node.func, "attr", getattr(node.func, "id", "")) == "warn"
        if makes:
            found |= {text for text in _texts(node) if len(text) >= _ENOUGH}
    return found


def _sections() -> dict[str, str]:
    """Return the text below each heading with an anchor."""
    parts = re.split(r"^#+ .*?(?:\{ #([\w-]+) \})?$", PAGE.read_text(), flags=re.MULTILINE)
    return {anchor: text for anchor, text in zip(parts[1::2], parts[2::2], strict=True) if anchor}


MODULES = {
    path.relative_to(PACKAGE).as_posix(): found
    for path in sorted(PACKAGE.rglob("*.py"))
    if any(word in (source := path.read_text()) for word in ("warn", "large_draws", "def improper"))
    if (found := _warned(source))
}


@pytest.mark.parametrize("module", MODULES)
def test_every_warning_is_on_the_page(module):
    sections = _sections()
    missing = [text for text in MODULES[module] if not any(text in one for one in sections.values())]
    assert missing == []


def test_no_section_is_about_a_warning_that_is_gone():
    made = {text for found in MODULES.values() for text in found}
    idle = [anchor for anchor, text in _sections().items() if not any(one in text for one in made)]
    assert idle == ["cycles"]  # its line is made by `mhrun.schedules.Plan`
    assert {
        "engine/warnings/run.py",
        "engine/warnings/draws.py",
        "report/report_warnings.py",
        "engine/pilot/sentences.py",
    } <= set(MODULES)


def test_a_warning_in_any_form_is_found():
    source = '''
def _new_warnings(name):
    """A docstring is not a warning."""
    yield f"{name}: something is wrong with {3} things."
def other():
    warnings.warn("a plain one of some length", UserWarning)
'''
    assert _warned(source) == {"a plain one of some length", ": something is wrong with"}
