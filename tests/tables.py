"""Small made-up Statlog sets, in the files and under the checksums that the package expects."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from mhrun.data import files, statlog

COVARIATES = {"australian.dat": 14, "german.data-numeric": 24, "heart.dat": 13}
CLASSES = {"australian.dat": (0, 1), "german.data-numeric": (1, 2), "heart.dat": (1, 2)}


def table(name: str, rows: int, rng: np.random.Generator) -> str:
    """Return rows of covariates and a class that goes with the first of them, most of the time."""
    x = np.round(3 + rng.normal(size=(rows, COVARIATES[name])), 2)
    labels = np.where(x[:, 0] + rng.normal(size=rows) > 3, *CLASSES[name][::-1])
    lines = (
        " ".join([*(f"{value:g}" for value in row), str(label)]) for row, label in zip(x, labels, strict=True)
    )
    return "".join(f"{line}\n" for line in lines)


def install(data: Path, patch: pytest.MonkeyPatch, rows: int = 60) -> None:
    """Write the files into the data folder, and have catalogue and environment speak of them."""
    place = data / "uci"
    place.mkdir(parents=True)
    rng, known = np.random.default_rng(23), []
    for file in files.CATALOGUE["uci"].files:
        text = table(file.name, rows, rng).encode()
        (place / file.name).write_bytes(text)
        known.append(file._replace(sha256=hashlib.sha256(files.canonical(text)).hexdigest()))
    patch.setitem(files.CATALOGUE, "uci", files.CATALOGUE["uci"]._replace(files=tuple(known), mirrors=()))
    for name, (file, _, positive) in statlog._FILES.items():
        patch.setitem(statlog._FILES, name, (file, rows, positive))
    patch.setenv("MHRUN_DATA_DIR", str(data))
