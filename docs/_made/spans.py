"""Keep what is generated in the README and in the pages up to date: ``make docs-refresh``.

Two kinds of marks are rewritten where they stand, so that the files read well in the repository too:

    <!-- value: ... -->0.011<!-- /value -->        a number of the results (values.py)

    <!-- made: WORD ... -->                        a table made from the repository (hooks.py)
    ...
    <!-- /made -->

    python docs/_made/spans.py            rewrite
    python docs/_made/spans.py --check    name the files that are not up to date, and exit with 1
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import yaml
from parts import ROOT
from values import quoted

VALUE = re.compile(r"(<!-- value: (.+?) -->)(.*?)(<!-- /value -->)", re.DOTALL)
MADE = re.compile(
    r"^<!-- made: (\S+)([^\n]*?) -->$(?:\n((?:(?!^<!-- made: ).)*?)^<!-- /made -->$)?",
    re.MULTILINE | re.DOTALL,
)
Maker = Callable[[str, list[str]], str]


def pages() -> list[Path]:
    """Return the files that may have marks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_values(text: str, keep_marks: bool = True) -> str:
    """Return a page with its values as the results have them now."""
    return VALUE.sub(
        lambda found: found[1] + quoted(found[2]) + found[4] if keep_marks else quoted(found[2]), text
    )


def with_tables(text: str, made: Maker) -> str:
    """Return a page with its closed ``made`` blocks as they are made now; those without an end stay."""

    def replaced(found: re.Match[str]) -> str:
        if found[3] is None:
            return found[0]
        head = found[0].partition("\n")[0]
        return f"{head}\n\n{made(found[1], found[2].split()).strip()}\n\n<!-- /made -->"

    return MADE.sub(replaced, text)


def current(path: Path) -> str:
    """Return the text of a file with all its marks up to date."""
    import hooks

    text = path.read_text()
    head = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    page = SimpleNamespace(meta=(yaml.safe_load(head[1]) or {}) if head else {})

    def made(word: str, arguments: list[str]) -> str:
        return hooks.MAKERS[word](page, *arguments)

    return with_tables(with_values(text), made)


def outdated() -> list[Path]:
    """Return the files in which something is not up to date."""
    return [path for path in pages() if current(path) != path.read_text()]


def main(check: bool) -> int:
    """Rewrite, or only name, what is not up to date."""
    for path in (found := outdated()):
        print(
            f"{path.relative_to(ROOT)}: {'not up to date; run `make docs-refresh`' if check else 'rewritten'}"
        )
        if not check:
            path.write_text(current(path))
    return int(check and bool(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(main("--check" in sys.argv[1:]))
