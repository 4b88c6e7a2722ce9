"""Lines for the user besides the output of a command, and lists in sentences."""

from __future__ import annotations

import sys
from collections.abc import Iterable


def say(line: str) -> None:
    """Print a line to stderr, as from mhrun."""
    print(f"mhrun: {line}", file=sys.stderr, flush=True)


def listed(items: Iterable[str]) -> str:
    """Return items as a list in a sentence: "a, b and c"."""
    texts = list(items)
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)
