"""Default names of parameters."""

from __future__ import annotations

from mhrun.errors import Refusal

_MOST = 10**7  # their names alone take more than half a gigabyte


def numbered(dim: int) -> tuple[str, ...]:
    """Return the names theta[0], ..., theta[dim - 1].

    Raises:
        Refusal: more than 10^7.
    """
    if dim > _MOST:
        raise Refusal(f"dim = {dim:,} parameters are too many to be named; choose at most {_MOST:,}.")
    return tuple(f"theta[{d}]" for d in range(dim))
