"""A small MNIST of smooth blobs, in the files and under the checksums that the package expects."""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import mhrun.data.mnist_pairs as pairs
from mhrun.data import cifar, files, images

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


def install_colours(patch: pytest.MonkeyPatch) -> None:
    """Have CIFAR's loader find noisy images whose brightest channel and half are of the class."""

    def read(name: str, split: str, chosen: npt.NDArray[np.int64]) -> tuple[Bytes, Bytes]:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, 60_000).astype(np.uint8)[chosen]
        images = rng.integers(0, 120, (len(chosen), 3, 32, 32)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[label % 3, 8 * (label // 3) : 8 * (label // 3) + 8] += 120
        return labels, images.reshape(len(chosen), -1)

    def made(kind: str, recipe: object, size: int, dtype: type, fill: Callable[[Bytes], None]) -> Bytes:
        out = np.empty(size, dtype)
        fill(out)
        return out

    patch.setattr(cifar, "_decoded", read)
    patch.setattr(cifar, "_unpacked", read)
    patch.setattr(cifar, "_zip", lambda: Path(__file__))
    patch.setattr(cifar, "generated", made)
