"""Short sweeps of one experiment, and where they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import FEW

OVERRIDES = ["-m", "experiment=gmm_tied_means", "scale=smoke", "runtime.threads=1", "~methods.sghmc", *FEW]

QUICK = ("steps=60", "warmup=50", "~report.figures")  # figures of the runs, which take most of the time
BARE = (*QUICK, "runtime.report=false")  # a page of the sweep, none of its runs


def enter(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Go to a folder, and leave the figures of every run out of reports: they take most of the time."""
    patch.chdir(folder)
    patch.setattr("mhrun.report.build.FIGURES", {})


def the_sweep(folder: Path) -> Path:
    """Return the only sweep that was run in a folder."""
    return next((folder / "outputs/gmm_tied_means/sweeps").iterdir())
