"""Names of parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mhrun.errors import Refusal

_MAX_NAMES = 10**7  # their names alone take more than half a gigabyte


def numbered(dim: int) -> tuple[str, ...]:
    """Return the names theta[0], ..., theta[dim - 1].

    Raises:
        Refusal: more than 10^7.
    """
    if dim > _MAX_NAMES:
        raise Refusal(f"dim = {dim:,} parameters are too many to be named; choose at most {_MAX_NAMES:,}.")
    return tuple(f"theta[{d}]" for d in range(dim))


def named(names: Sequence[str] | None, dim: int) -> tuple[str, ...]:
    """Return the names of `dim` parameters: those given, or theta[0], ..., theta[dim - 1].

    Raises:
        Refusal: a number of names other than `dim`, a name that is empty or no text, or one twice.
    """
    if names is None:
        return numbered(dim)
    if isinstance(names, str) or len(names) != dim:
        count = 1 if isinstance(names, str) else len(names)
        raise Refusal(f"names has {count:,} for {dim:,} parameters; give a list with one for each.")
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise Refusal(f"names has {name!r}; a name is a text that is not empty.")
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise Refusal(f"names has '{repeated[0]}' twice; give each parameter another name.")
    return tuple(names)
