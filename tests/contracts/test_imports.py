"""Every module of the engine can be imported first: no import works only because another one came before it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mhrun.engine

pytestmark = pytest.mark.long

CODE = """
import importlib, sys
import mhrun
for name in sys.argv[1:]:
    for loaded in [key for key in sys.modules if key.startswith("mhrun.engine")]:
        del sys.modules[loaded]
    importlib.import_module(name)
"""


def test_modules_of_the_engine_can_be_imported_first():
    folder = Path(mhrun.engine.__file__).parent
    names = [
        ".".join(("mhrun", "engine", *path.relative_to(folder).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for path in sorted(folder.rglob("*.py"))
    ]
    done = subprocess.run([sys.executable, "-c", CODE, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
