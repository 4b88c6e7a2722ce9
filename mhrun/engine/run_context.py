"""State shared by the parts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mhrun.engine.settings import Settings
from mhrun.engine.stop import StopSignal
from mhrun.engine.watcher import Watcher
from mhrun.store.folder import RunFolder


class RunContext(NamedTuple):
    """The configuration, folder and settings of a run, its watcher, and the signal that stops it."""

    config: Mapping[str, Any]
    folder: RunFolder
    settings: Settings
    digests: Mapping[str, str]  # of the methods
    watcher: Watcher
    stop: StopSignal
