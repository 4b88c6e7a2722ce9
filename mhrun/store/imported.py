"""The code of projects in one Python process, such as a notebook, which opens runs of several.

Python keeps a module under its name, and projects have modules of one name. So the modules of a project are forgotten
before those of another are imported, and when one of their files was edited. What was made from them stays as it is.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from mhrun.build import TRUST
from mhrun.paths import FOLDERS
from mhrun.store.projects import Project
from mhrun.store.sources import forget_code


class _Imports:
    """Modules that were imported from the folder of a project since it was opened first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._others, self._was_searched = set(sys.modules), str(folder) in sys.path
        self._stamps: dict[str, tuple[int, int]] = {}

    def note(self) -> None:
        """Note the state of the files whose code is in use."""
        for name, file in self._files():
            if name not in self._stamps:
                self._stamps[name] = _stamp(file)

    def is_edited(self) -> bool:
        """Return whether one of the files was changed since."""
        return any(_stamp(file) != self._stamps.get(name, _stamp(file)) for name, file in self._files())

    def forget(self) -> None:
        """Let Python import the modules anew, and from elsewhere."""
        for name, _ in self._files():
            del sys.modules[name]
        if not self._was_searched and str(self.folder) in sys.path:
            sys.path.remove(str(self.folder))
        importlib.invalidate_caches()
        forget_code()

    def _files(self) -> list[tuple[str, Path]]:
        own = ((name, _file(module)) for name, module in sys.modules.items() if name not in self._others)
        return [(name, file) for name, file in own if file is not None and file.is_relative_to(self.folder)]


_opened: _Imports | None = None  # of the project that was opened last


def forget_others(where: str) -> None:
    """Forget the modules of a project that was opened before, unless it is the one at `where`."""
    global _opened
    if _opened is not None and _opened.folder != Path(where).expanduser().resolve():
        _opened.forget()
        _opened = None


@contextmanager
def imported_from(project: Project) -> Iterator[None]:
    """Trust the files of a project, and search its folder, inside the context."""
    global _opened
    if project.folder is not None:
        forget_others(str(project.folder))
        if _opened is not None and _opened.is_edited():
            _opened.forget()
            _opened = None
        _opened = _opened or _Imports(project.folder)
    before = {name: os.environ.get(name) for name in (TRUST, FOLDERS)}
    additions = {TRUST: (project.modules, ","), FOLDERS: ([str(project.folder or "")], os.pathsep)}
    for name, (entries, separator) in additions.items():
        os.environ[name] = separator.join(filter(None, [before[name] or "", *entries]))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if project.folder is not None and _opened is not None:
            _opened.note()


def _file(module: ModuleType) -> Path | None:
    """Return the file of a module; None if it has none, as a package without an ``__init__.py``."""
    origin = getattr(module, "__file__", None)
    return Path(origin).resolve() if isinstance(origin, str) else None


def _stamp(file: Path) -> tuple[int, int]:
    with suppress(OSError):
        status = file.stat()
        return status.st_mtime_ns, status.st_size
    return 0, 0
