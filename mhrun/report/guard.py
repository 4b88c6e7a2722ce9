"""Isolates failures: a part of a report that fails leaves the others intact."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mhrun.errors import reason_of
from mhrun.store.files import open_log

NO_TABLE, NO_FIGURE = "This table could not be made", "This figure could not be drawn"
T = TypeVar("T")


class Guard:
    """Calls what may fail, and keeps what happened.

    Args:
        log: the file that tracebacks are added to.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self.failures: list[str] = []

    def __call__(self, name: str, what: str, make: Callable[[], T]) -> T | str:
        """Return ``make()``, or a line that says what could not be made and why.

        Args:
            name: of the part, for messages on many parts.
            what: the beginning of the line, such as `NO_FIGURE`.
            make: makes it.
        """
        try:
            return make()
        # An author's function meets runs that its author did not think of: whatever goes wrong in one, the
        # hours of computing behind the run should still show all the rest. Ctrl-C is none of these.
        except Exception as error:
            line = f"{what}: {reason_of(error)}"
            with suppress(OSError), open_log(self.log) as file:
                file.write(
                    f"{time.strftime('%Y-%m-%d %H:%M:%S')} ERROR {name}: {line}\n{traceback.format_exc()}"
                )
            self.failures.append(f"{name}: {line} (log: {self.log})")
            return line

    def value(self, name: str, what: str, make: Callable[[], T], default: T) -> tuple[T, list[str]]:
        """Return ``make()`` and no line, or the default and the line of `__call__`."""
        made = self(name, what, make)
        return (default, [made]) if isinstance(made, str) else (made, [])
