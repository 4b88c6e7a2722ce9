"""Whose code something is: of this project, of a library, or the user's."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from mhrun.errors import place_in, reason_of
from mhrun.paths import EXPERIMENTS, PACKAGE, user_folders

_INSTALLED = ("site-packages", "dist-packages")
# As files of the standard library name their folder, and where it really is.
_STANDARD = {
    path
    for key in ("stdlib", "platstdlib")
    for path in (Path(sysconfig.get_path(key)), Path(os.__file__).resolve().parent)
}
# An installed package is one folder; a clone also has experiments/ and hydra_plugins/.
_OWN = (PACKAGE, EXPERIMENTS, PACKAGE.parent / "hydra_plugins")


def is_bundled(part: Any) -> bool:
    """Return whether a class, or the class of an object, is defined in this package, not by the user or a library."""
    return is_own_module((part if isinstance(part, type) else type(part)).__module__)


def is_own_module(name: str) -> bool:
    """Return whether a module of this name is in this package."""
    return name.partition(".")[0] == "mhrun"


def is_own_file(file: str) -> bool:
    """Return whether a file is of this project."""
    return any(Path(file).is_relative_to(folder) for folder in _OWN)


def is_library(file: str) -> bool:
    """Return whether code is of the standard library or of an installed package, which a project of the user's may be.

    Args:
        file: the code's, as in a traceback; code without a file, such as ``<string>``, counts as a library's.
    """
    if file.startswith("<"):
        return True
    folder = None if is_own_file(file) else _folder_of_libraries(Path(file))
    return folder is not None and not any(
        folder in project.parents and Path(file).is_relative_to(project) for project in user_folders()
    )


def _folder_of_libraries(path: Path) -> Path | None:
    installed = (folder for folder in path.parents if folder.name in _INSTALLED)
    return next(installed, None) or next((place for place in _STANDARD if path.is_relative_to(place)), None)


def frames_of(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of an exception outside of libraries, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not is_library(frame.filename)]


def user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost frame of an exception of the user's code, in a project before elsewhere, or None."""
    frames = [frame for frame in frames_of(error) if not is_own_file(frame.filename)]
    projects = user_folders()
    in_projects = [f for f in frames if any(Path(f.filename).is_relative_to(project) for project in projects)]
    return next(reversed(in_projects or frames), None)


def blame(error: BaseException) -> str:
    """Return an error of a user's code in one line, with the last line of the user's code.

    Without one, as in an error of this project, with the last line of this project.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{reason_of(error)} ({place_in(error.filename, error.lineno)})"
    frame = user_frame(error) or next(reversed(frames_of(error)), None)
    return (
        reason_of(error)
        if frame is None
        else f"{reason_of(error)} ({place_in(frame.filename, frame.lineno)})"
    )
