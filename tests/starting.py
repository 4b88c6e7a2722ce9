"""Tables from which ``mhrun init DIR --data FILE`` begins a project."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest


def own_folder(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Go to a folder without trusted projects; afterwards forget the modules of the project that was begun there."""
    patch.setenv("MHRUN_TRUST", "")
    patch.setenv("MHRUN_FOLDERS", "")
    patch.chdir(folder)
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("my_rows_model", None)


def table(rows: int = 60, **columns: Any) -> pd.DataFrame:
    """Write `my rows.csv` with two features and further columns, given as values or functions (rng, rows)."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(rows, 2)), columns=["age", "bmi"])
    frame = frame.assign(
        **{name: value(rng, rows) if callable(value) else value for name, value in columns.items()}
    )
    frame.to_csv("my rows.csv", index=False)
    return frame


def flags(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Return values of 0 and 1."""
    return rng.integers(0, 2, rows)


def numbers(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Return normal numbers."""
    return rng.normal(size=rows)
