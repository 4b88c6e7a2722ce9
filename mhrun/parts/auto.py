"""Settings that a pilot run finds."""

from __future__ import annotations

from typing import Any

from mhrun.numbers import whole_number

AUTO = "auto"
"""A setting that a pilot run finds (`mhrun.engine.pilot`)."""

_UNKNOWN_M = 2  # placeholder of a minibatch size that is not known yet


def checked_minibatch_size(m: Any) -> int:
    """Return a minibatch size that is a number, or for ``auto`` one that stands for it until a pilot has found one.

    Raises:
        Refusal: it is neither.
    """
    if isinstance(m, str) and m == AUTO:
        return _UNKNOWN_M
    return whole_number("m", m, other=AUTO)
