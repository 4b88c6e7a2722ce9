"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import digits
import numpy as np
import pytest
import torch

from mhrun.data import Dataset, files, images
from mhrun.data.mixture import MixtureSample

# Each worker is one of several processes: one thread each.
torch.set_num_threads(1)

# Tests neither read nor write the user's own data sets.
os.environ.pop("MHRUN_DATA_DIR", None)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the user's cache folder out of the tests, but share compiled code between the workers."""
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    os.environ["MHRUN_CACHE_DIR"] = str(shared / "cache")


@pytest.fixture(autouse=True)
def _own_data_folder() -> Iterator[None]:
    """Let no test say where the next looks for data sets, as a run does for its process."""
    before = files._chosen
    yield
    files._chosen = before


@pytest.fixture(scope="session")
def mixture() -> Dataset:
    """20,000 draws of the tied mixture."""
    return MixtureSample(20_000, (0.0, 1.0), 2.0, seed=3).load()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20170724)


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    return tmp_path / "outputs"


@pytest.fixture
def few_images(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """An MNIST of 123 made-up images to train on and 53 to test."""
    digits.install(tmp_path, monkeypatch, digits.blobs(rng, 60, 60), digits.blobs(rng, 25, 25))
    monkeypatch.setattr(images, "_FILES", {"train": ("train", 123), "test": ("t10k", 53)})
