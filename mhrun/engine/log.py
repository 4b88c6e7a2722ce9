"""The log of a run, log.txt in its folder."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from mhrun.engine.watcher import Watcher
from mhrun.store.files import explain, open_log
from mhrun.store.folder import RunFolder

log = logging.getLogger("mhrun")


@contextmanager
def log_to(folder: RunFolder) -> Iterator[None]:
    """Append log records to the log file of a run.

    Raises:
        UserError: the log cannot be written.
    """
    try:
        handler = logging.StreamHandler(open_log(folder.log))
    except OSError as error:
        raise explain(error, folder.log) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.stream.close()


class LoggingWatcher:
    """A watcher that also logs at which step a method resumes."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def begin(self, method: str, step: int, total: int, executor: str) -> None:
        """Log the step of a method that resumes."""
        if step:
            log.info("%s: resumed at step %d of %d", method, step, total)
        self._watcher.begin(method, step, total, executor)

    def advance(self, method: str, step: int, accept_rate: float | None, n_lik: int, n_grad: int) -> None:
        """Forward it to the wrapped watcher."""
        self._watcher.advance(method, step, accept_rate, n_lik, n_grad)

    def end(self, method: str) -> None:
        """Forward it to the wrapped watcher."""
        self._watcher.end(method)

    def note(self, message: str) -> None:
        """Forward it to the wrapped watcher."""
        self._watcher.note(message)
