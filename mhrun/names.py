"""Names that become files and folders: of experiments, methods, tables and figures."""

from __future__ import annotations

import re

from mhrun.errors import UserError, cut

SCALES = ("smoke", "quick", "long", "paper")
"""The usual names of an experiment's scales; an experiment may have others."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_name(text: object) -> bool:
    """Return whether `text` is 1 to 64 ASCII letters, digits, dashes and underscores."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def group_name(text: str) -> str:
    """Return a name for Python and traces from that of a column: other letters become _; "group" precedes a digit."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    return name if name[:1].isalpha() else f"group_{name}".rstrip("_")


def checked_name(text: object, what: str) -> str:
    """Return `text` if it is a name.

    Args:
        text: what was given.
        what: what it should be a name of, for the message: ``"the method"``.

    Raises:
        UserError: it is not 1 to 64 letters, digits, dashes and underscores; it may be a path.
    """
    if not is_name(text):
        raise UserError(f"{what} {cut(repr(text))} is not a name; use 1 to 64 letters, digits, - and _.")
    return str(text)
