"""Lines for the user besides the output of a command."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """Print a line to stderr, as from mhrun."""
    print(f"mhrun: {line}", file=sys.stderr, flush=True)
