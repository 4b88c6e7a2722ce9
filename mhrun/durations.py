"""Seconds in words."""

from __future__ import annotations


def in_words(seconds: float) -> str:
    """Return seconds as a person would say them: ``40 s``, ``3.5 min``, ``2 h``, ``4 days``."""
    for unit, size in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return (
                f"{seconds / size:.2g} {unit}" if seconds < 99.5 * size else f"{seconds / size:,.0f} {unit}"
            )
    return f"{seconds:.0f} s"
