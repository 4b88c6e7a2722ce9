"""A small MNIST of smooth blobs, in the files and under the checksums that the package expects."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import mhrun.data.mnist_pairs as pairs
from mhrun.data import files, images

Bytes = npt.NDArray[np.uint8]


def idx(array: Bytes) -> bytes:
    """Return an array as an IDX file holds it."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def blobs(rng: np.random.Generator, ones: int, sevens: int) -> tuple[Bytes, Bytes]:
    """Return images of a bright blob each, the sevens' below the others', and labels; a few are threes."""
    labels = rng.permutation(np.repeat(np.array([1, 3, 7], dtype=np.uint8), (ones, 3, sevens)))
    rows, columns = np.mgrid[:28, :28]
    places = rng.uniform(10, 18, (2, len(labels), 1, 1))
    places[0] = places[0] / 4 + np.where(labels == 7, 16, 6)[:, None, None]
    squares = (rows - places[0]) ** 2 + (columns - places[1]) ** 2
    return (255 * np.exp(-squares / 18)).astype(np.uint8), labels


def install(
    folder: Path, patch: pytest.MonkeyPatch, train: tuple[Bytes, Bytes], test: tuple[Bytes, Bytes]
) -> None:
    """Write the files into folder/data, and have catalogue, counts and environment speak of them."""
    place = folder / "data" / "mnist"
    place.mkdir(parents=True)
    known = []
    for entry, array in zip(files.CATALOGUE["mnist"].files, [*train, *test], strict=True):
        (place / entry.name).write_bytes(gzip.compress(idx(array)))
        known.append(files.RemoteFile(entry.name, hashlib.sha256(idx(array)).hexdigest()))
    changed = files.CATALOGUE["mnist"]._replace(files=tuple(known), mirrors=())
    patch.setitem(files.CATALOGUE, "mnist", changed)
    counts = {
        split: tuple(np.bincount(labels, minlength=10).tolist())
        for split, (_, labels) in (("train", train), ("test", test))
    }
    patch.setattr(pairs, "_COUNTS", counts)
    for split, (_, labels) in (("train", train), ("test", test)):
        patch.setitem(images._FILES, split, (images._FILES[split][0], len(labels)))
    patch.setenv("MHRUN_DATA_DIR", str(place.parent))
