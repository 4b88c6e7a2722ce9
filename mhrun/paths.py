"""Locations of the project's files, in a clone and in an installed wheel."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from mhrun.errors import UserError, cut, nearest
from mhrun.messages import say

PACKAGE = Path(__file__).resolve().parent
# A clone has conf/ and experiments/ beside the package; a wheel carries both inside it.
ROOT = PACKAGE.parent if (PACKAGE.parent / "conf" / "config.yaml").is_file() else PACKAGE / "_bundled"
CONF = ROOT / "conf"
EXPERIMENTS = ROOT / "experiments"

STARTERS = ROOT / "starter"

FOLDERS = "MHRUN_FOLDERS"
"""The environment variable that names the user's folders, so that jobs in other processes find them too."""

_ALIAS = "mhrun_experiments"


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with a leading ``~`` or ``~user`` replaced; as it is if there is no such user, as in a shell."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def cache_dir() -> Path:
    """Return the folder for files that can be recreated: compiled code, downloads, generated data.

    Without a home folder it is a temporary one of this process.
    """
    return lasting_cache_dir() or _temporary_cache_dir()


def lasting_cache_dir() -> Path | None:
    """Return the cache folder that later processes have too; None without a home folder, as in some containers."""
    base = os.environ.get("MHRUN_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        return (expanded(base) if base else Path.home() / ".cache") / "mhrun"
    except RuntimeError:  # HOME is not set, and the system does not know the user
        return None


@cache
def _temporary_cache_dir() -> Path:
    folder = tempfile.mkdtemp(prefix="mhrun-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    say(
        "there is no home folder: compiled code and data are kept until this process ends; MHRUN_CACHE_DIR=FOLDER "
        "keeps them."
    )
    return Path(folder)


def user_folders() -> list[Path]:
    """Return the folders named by the user, which are searched for Python files and data files."""
    return [Path(folder) for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]


def import_from_folders() -> None:
    """Add the user's folders to the end of the import path, where they cannot hide a library."""
    sys.path += [str(folder) for folder in user_folders() if str(folder) not in sys.path]


def claims_path(paper: str) -> Path | None:
    """Return the claims of a paper, in ``experiments/<paper>/claims.yaml`` of a user's folder or of mhrun, or None."""
    places = [folder / "experiments" for folder in user_folders()] + [EXPERIMENTS]
    paths = [place / paper / "claims.yaml" for place in places]
    return next((path for path in paths if paper and path.is_file()), None)


def located(name: str) -> Path:
    """Return the path of a data file: absolute, or relative to the user's folders or the working directory.

    The user's folders come first, so that a run finds the same file wherever it is started.

    Raises:
        UserError: there is no such file.
    """
    excerpt, file = cut(name, 200), expanded(name)
    places = [file] if file.is_absolute() else [folder / file for folder in (*user_folders(), Path.cwd())]
    for place in places:
        with suppress(OSError, ValueError):  # the name is too long or invalid
            if place.is_file():
                return place
    siblings: list[str] = []
    for place in places:
        with suppress(OSError, ValueError):
            siblings += [path.name for path in place.parent.iterdir()]
    where = (
        "" if file.is_absolute() else ", neither in your project (--project DIR) nor in the working directory"
    )
    raise UserError(f"There is no data file '{excerpt}'{where}.{nearest(file.name, siblings)}")


def experiment_module(name: str) -> ModuleType:
    """Import ``experiments/<name>`` (dots for slashes), wherever the project is installed.

    The folder is imported under a separate name, so that a folder ``experiments`` in the user's project is never taken
    for it.

    Raises:
        ModuleNotFoundError: there is no such file.
    """
    if _ALIAS not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            _ALIAS, EXPERIMENTS / "__init__.py", submodule_search_locations=[str(EXPERIMENTS)]
        )
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[_ALIAS] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"{_ALIAS}.{name}")
