"""Keep what is generated in the README and in the pages up to date: ``make docs-refresh``.

Two things are rewritten where they stand, so that the files read well in the repository too. Numbers of the results
(values.py), which a comment at the end of the page describes, one passage a line in the order of the page:

    The distance of MINT is 0.011, and 5 of 6 claims hold.

    <!-- values:
    distance of MINT is {claim mint gmm_tied_means f1l-close}, and {count gmm_tied_means} claims
    -->

And tables made from the repository (hooks.py, or plain.py where the site has HTML), between two marks:

    <!-- made: WORD ... -->
    ...
    <!-- /made -->

    python docs/_made/refresh.py            rewrite
    python docs/_made/refresh.py --check    name the files that are not up to date, and exit with 1
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import yaml
from parts import ROOT
from values import UnknownValue, quoted

VALUES = re.compile(r"^<!-- values:\n(.*?)^-->\n?", re.MULTILINE | re.DOTALL)
_VALUE = re.compile(r"\{([a-z_]+(?: [^{}]*)?)\}")
_LONGEST = r"([^|]{0,60}?)"  # a value; in a table it does not go beyond its cell
MADE = re.compile(
    r"^<!-- made: (\S+)([^\n]*?) -->$(?:\n((?:(?!^<!-- made: ).)*?)^<!-- /made -->$)?",
    re.MULTILINE | re.DOTALL,
)
Maker = Callable[[str, list[str]], str]


def pages() -> list[Path]:
    """Return the files that may have generated parts."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_values(text: str) -> str:
    """Return a page with its values as the results have them now.

    Raises:
        UnknownValue: a passage is not in the page, in the order of the comment, or quotes a number that cannot exist.
    """
    block = VALUES.search(text)
    if block is None:
        return text
    body, place = text[: block.start()], 0
    for passage in filter(None, map(str.strip, block[1].splitlines())):
        body, place = with_passage(body, passage, place)
    return body + text[block.start() :]


def without_values(text: str) -> str:
    """Return a page without the comment that describes its values."""
    return VALUES.sub("", text)


def filled(text: str) -> str:
    """Return a text with its ``{values}`` filled in."""
    return _VALUE.sub(lambda found: quoted(found[1]), text)


def with_passage(body: str, passage: str, place: int = 0) -> tuple[str, int]:
    """Return a text with the values of the first such passage from `place` on, and where the passage ends.

    The text may be broken into lines differently.
    """
    literals, specs = (parts := _VALUE.split(passage))[::2], parts[1::2]
    if not specs or not all(map(str.strip, (literals[0], literals[-1]))):
        raise UnknownValue(f"'{passage}' must have a value in braces, and words before and after it.")
    words = [r"\s+".join(map(re.escape, re.split(r"\s+", literal))) for literal in literals]
    found = re.compile(_LONGEST.join(words) + r"(?!\d)").search(body, place)
    if found is None:
        raise UnknownValue(f"the passage '{passage}' is not in the page after those before it.")
    new, end = "", found.start()
    for group, spec in enumerate(specs, start=1):
        value = quoted(spec)
        same = found[group].split() == value.split()  # broken into lines differently
        new += body[end : found.start(group)] + (found[group] if same else value)
        end = found.end(group)
    new = body[: found.start()] + new + body[end : found.end()]
    return new + body[found.end() :], len(new)


def with_tables(text: str, made: Maker) -> str:
    """Return a page with its closed ``made`` blocks as they are made now; those without an end stay."""

    def replaced(found: re.Match[str]) -> str:
        if found[3] is None:
            return found[0]
        head = found[0].partition("\n")[0]
        return f"{head}\n\n{made(found[1], found[2].split()).strip()}\n\n<!-- /made -->"

    return MADE.sub(replaced, text)


def current(path: Path) -> str:
    """Return the text of a file with all its generated parts up to date."""
    import hooks

    text = path.read_text(encoding="utf-8")
    head = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    page = SimpleNamespace(meta=(yaml.safe_load(head[1]) or {}) if head else {})

    def made(word: str, arguments: list[str]) -> str:
        return (hooks.MAKERS | hooks.PLAIN)[word](page, *arguments)

    try:
        return with_tables(with_values(text), made)
    except UnknownValue as error:
        raise UnknownValue(f"{path.relative_to(ROOT)}: {error}") from error


def outdated() -> list[Path]:
    """Return the files in which something is not up to date."""
    return [path for path in pages() if current(path) != path.read_text(encoding="utf-8")]


def main(check: bool) -> int:
    """Rewrite, or only name, what is not up to date."""
    for path in (found := outdated()):
        print(
            f"{path.relative_to(ROOT)}: {'not up to date; run `make docs-refresh`' if check else 'rewritten'}"
        )
        if not check:
            path.write_text(current(path), encoding="utf-8")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        sys.exit(main("--check" in sys.argv[1:]))
    except UnknownValue as error:
        sys.exit(str(error))
