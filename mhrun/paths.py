"""Where the project's own files are, in a clone and in an installed wheel."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parent
# A clone has conf/ and experiments/ beside the package; a wheel carries both inside it.
ROOT = PACKAGE.parent if (PACKAGE.parent / "conf" / "config.yaml").is_file() else PACKAGE / "_bundled"
CONF = ROOT / "conf"
EXPERIMENTS = ROOT / "experiments"

_ALIAS = "mhrun_experiments"


def cache_dir() -> Path:
    """Return the folder for what can always be made again: compiled code, downloads, generated data."""
    base = os.environ.get("MHRUN_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache").expanduser() / "mhrun"


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
