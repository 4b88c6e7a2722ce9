"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import digits
import kit
import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from mhrun.data import Dataset, files, images
from mhrun.data.mixture import MixtureSample
from mhrun.engine import jobs
from mhrun.native import compiler
from mhrun.paths import FOLDERS
from mhrun.report import on_page
from mhrun.report.comparison import page as comparison_page
from mhrun.report.sweep import build as sweep

# Each worker is one of several processes: one thread each, and no processes for methods.
torch.set_num_threads(1)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the processes that tests start
threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), user_api="blas")
jobs._PAYS = float("inf")
# A power cut here loses nothing that anybody wants.
os.fsync = lambda fd: None
# Fonts in a PDF take a quarter of a second for each figure: `every_format` is for tests that look at a PDF.
on_page.FORMATS = ("png",)

_DAYS = 14  # that machine code is kept after it was last added to

# Tests neither read nor write the user's own data sets.
os.environ.pop("MHRUN_DATA_DIR", None)


def pytest_collection_finish() -> None:
    """Let garbage collection skip what is imported by now and run less often: it takes 6 % of the time otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> None:
    """Keep the user's cache folder out of the tests.

    Workers share a new one. Machine code in it is kept in .pytest_cache from one test run to the next: its folder
    has the digest of the sources that it was compiled from.
    """
    root = tmp_path_factory.getbasetemp()
    shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    os.environ["MHRUN_CACHE_DIR"] = str(shared / "cache")
    (shared / "cache" / "mhrun").mkdir(parents=True, exist_ok=True)
    cache = getattr(request.config, "cache", None)
    if cache is None:  # pytest -p no:cacheprovider
        return
    kept = cache.mkdir("machine-code")
    with suppress(FileExistsError):  # of another worker
        (shared / "cache" / "mhrun" / "native").symlink_to(kept, target_is_directory=True)
    for folder in kept.iterdir():
        if time.time() - folder.stat().st_mtime > _DAYS * 86_400:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _own_folders() -> Iterator[None]:
    """Restore the folder of data sets and the project's folders after each test: a run sets them for its process."""
    before = files._chosen, os.environ.get(FOLDERS)
    yield
    files._chosen, folders = before
    if folders is None:
        os.environ.pop(FOLDERS, None)
    else:
        os.environ[FOLDERS] = folders


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
def every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write figures in every format, as reports outside of tests do."""
    monkeypatch.setattr(on_page, "FORMATS", kit.EVERY_FORMAT)


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the functions of figures and take a small white picture for what they draw.

    Rendering takes most of a report: for tests of its text, its tables and its files.
    """
    for module in (on_page, sweep, comparison_page):
        monkeypatch.setattr(module, "draw", kit.unrendered)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run compiled loops as plain Python: compilation takes two to six seconds a loop."""
    monkeypatch.setattr(compiler, "_machine_code", lambda make, *pieces: make(*pieces))


@pytest.fixture(params=["plain Python", pytest.param("machine code", marks=pytest.mark.slow)])
def either_code(request: pytest.FixtureRequest) -> None:
    """Run compiled loops as plain Python, and among the slow tests as machine code too."""
    if request.param == "plain Python":
        request.getfixturevalue("interpreted")


@pytest.fixture
def few_images(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """An MNIST of 123 made-up images to train on and 53 to test."""
    digits.install(tmp_path, monkeypatch, digits.blobs(rng, 60, 60), digits.blobs(rng, 25, 25))
    monkeypatch.setattr(images, "_FILES", {"train": ("train", 123), "test": ("t10k", 53)})
