"""Progress lines of work of unknown length."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mhrun.durations import describe_duration

_SILENT, _BETWEEN = 15.0, 60.0  # seconds before the first line, and between two lines


@contextmanager
def announced(what: str, note: Callable[[str], None]) -> Iterator[None]:
    """Note after a while, and then every minute, how long the body has taken.

    Args:
        what: is done, the subject of a sentence.
        note: called with one line.
    """
    ended, began = threading.Event(), time.monotonic()

    def announce() -> None:
        pause = _SILENT
        while not ended.wait(pause):
            note(f"{what} has taken {describe_duration(time.monotonic() - began)} so far.")
            pause = _BETWEEN

    announcer = threading.Thread(target=announce, daemon=True)
    announcer.start()
    try:
        yield
    finally:
        ended.set()
        announcer.join()
