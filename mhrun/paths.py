"""Where the project's own files are, in a clone and in an installed wheel."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from mhrun.errors import UserError, nearest

PACKAGE = Path(__file__).resolve().parent
# A clone has conf/ and experiments/ beside the package; a wheel carries both inside it.
ROOT = PACKAGE.parent if (PACKAGE.parent / "conf" / "config.yaml").is_file() else PACKAGE / "_bundled"
CONF = ROOT / "conf"
EXPERIMENTS = ROOT / "experiments"

STARTER = ROOT / "starter"

FOLDERS = "MHRUN_FOLDERS"
"""The environment variable that names the user's own folders; there, so that jobs in other processes have them."""

_ALIAS = "mhrun_experiments"
_SHOWN = 200  # letters of a file's name that a message shows


def cache_dir() -> Path:
    """Return the folder for what can always be made again: compiled code, downloads, generated data."""
    base = os.environ.get("MHRUN_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").expanduser() / "mhrun"


def user_folders() -> list[Path]:
    """Return the folders that the user named: Python files and data files are looked for there."""
    return [Path(folder) for folder in os.environ.get(FOLDERS, "").split(os.pathsep) if folder]


def import_from_folders() -> None:
    """Let what is in the user's folders be imported; last on the path, it can hide no library."""
    sys.path += [str(folder) for folder in user_folders() if str(folder) not in sys.path]


def located(name: str) -> Path:
    """Return the data file of this name: an absolute path, or one in the user's folders or where we are.

    The user's folders come first, so that a run finds the same file from wherever it is started.

    Raises:
        UserError: there is none.
    """
    shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."
    try:
        wanted = Path(name).expanduser()
    except RuntimeError as error:  # of a user that there is not
        raise UserError(f"There is no data file '{shown}': {error}") from error
    places = (
        [wanted] if wanted.is_absolute() else [folder / wanted for folder in (*user_folders(), Path.cwd())]
    )
    for place in places:
        with suppress(OSError, ValueError):  # of a name that is too long, or no name
            if place.is_file():
                return place
    beside: list[str] = []
    for place in places:
        with suppress(OSError, ValueError):
            beside += [path.name for path in place.parent.iterdir()]
    where = "" if wanted.is_absolute() else ", neither in a folder of yours (--project DIR) nor here"
    raise UserError(f"There is no data file '{shown}'{where}.{nearest(wanted.name, beside)}")


def experiment_module(name: str) -> ModuleType:
    """Import ``experiments/<name>`` (dots for slashes), wherever the project is installed.

    The folder is loaded under a name of its own, so that a folder called ``experiments`` in the
    user's project can never be taken for it.

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
