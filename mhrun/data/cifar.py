"""CIFAR-10 and CIFAR-100: colour images of 32 x 32 pixels (Krizhevsky 2009)."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mhrun.array_cache import generated
from mhrun.array_types import UInt8Array
from mhrun.data.dataset import Dataset
from mhrun.data.files import CATALOGUE, content, data_dir
from mhrun.data.pixels import smaller
from mhrun.data.selection import Selection, check_split
from mhrun.data.transforms import transforms
from mhrun.errors import Refusal, UserError, nearest

SIDE, PIXELS = 32, 3 * 32 * 32
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
_COUNTS = {"train": 50_000, "test": 10_000}
_TRAIN = tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6))
# The members of each archive, and how many bytes of labels precede an image; the last of them is the class.
_MEMBERS: dict[str, tuple[dict[str, tuple[str, ...]], int]] = {
    "cifar10": ({"train": _TRAIN, "test": ("cifar-10-batches-bin/test_batch.bin",)}, 1),
    "cifar100": ({"train": ("cifar-100-binary/train.bin",), "test": ("cifar-100-binary/test.bin",)}, 2),
}
_JPEG = "cifar10-jpeg"
_LARGEST = 1 << 16  # bytes of a JPEG file of 32 x 32 pixels, at most
NAMES = (*_MEMBERS, _JPEG)
MARK = "a JPEG copy, whose pixels differ slightly: orderings can be judged on it, and no printed number"


class Cifar:
    """Some of the images of a split: ``x`` (n, 3, side, side) uint8, a pixel k for k/255, and ``y`` (n,), the class.

    Read from the publishers' archives of the binary version, verified by SHA-256; nothing is unpickled.
    ``cifar10-jpeg`` is a copy as JPEG files (``cifar10-jpeg/images.zip`` in the data folder) in a fixed random order.
    It is marked in reports.

    Args:
        name: ``cifar10``, ``cifar100``, or ``cifar10-jpeg``.
        split: ``train`` (50,000) or ``test`` (10,000).
        n: how many; None for all that are left after `skip`.
        skip: how many to leave out at the beginning.
        shuffle: a seed: images are first put in a random order. None leaves the order of the file.
        side: 32; 16 or 8 for means over squares of 2 x 2 or 4 x 4 pixels.
        augment: ``none``; or ``code``: minibatches have random crops of images padded by side / 8 and mirror images.
            There is then no exact likelihood: the distribution is that of (theta, augmented minibatch).
        permuted: share of the labels in minibatches that are permuted among each other, anew in each pass (Luo et al.
            2020, section 4.2).

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        name: str = "cifar10",
        split: Literal["train", "test"] = "train",
        n: int | None = None,
        skip: int = 0,
        shuffle: int | None = None,
        side: int = SIDE,
        augment: Literal["none", "code"] = "none",
        permuted: float = 0.0,
    ) -> None:
        if name not in NAMES:
            raise Refusal(f"there are no images '{name}'; choose {', '.join(NAMES)}.{nearest(name, NAMES)}")
        check_split(split)
        selection = Selection.of(_COUNTS[split], n, skip, shuffle)
        if side not in (32, 16, 8):
            raise Refusal(f"side = {side} must be 32, 16 or 8 pixels.")
        self.name = name
        self.split = split
        self.n = selection.n
        self.skip = skip
        self.shuffle = shuffle
        self.side = side
        self.transforms = transforms(self.n, augment, permuted, side)

    def load(self) -> Dataset:
        """Return the data set; the first call decodes the images and keeps them in the cache folder.

        Raises:
            UserError: the files are not there, damaged, or hold other images.
        """
        chosen = Selection(_COUNTS[self.split], self.n, self.skip, self.shuffle).rows()
        if self.name == _JPEG:
            source: Any = Path(_zip()).stat().st_size
        else:
            source = CATALOGUE[self.name].files[0].sha256
        recipe = [1, self.name, source, self.split, self.n, self.skip, self.shuffle]
        size = self.n * (1 + PIXELS)

        def fill(out: UInt8Array) -> None:
            labels, images = out[: self.n], out[self.n :].reshape(self.n, PIXELS)
            reader = _decoded if self.name == _JPEG else _unpacked
            labels[:], images[:] = reader(self.name, self.split, chosen)

        stored = np.asarray(generated("cifar", recipe, size, np.uint8, fill))
        y, x = stored[: self.n].astype(np.int64), stored[self.n :].reshape(self.n, 3, SIDE, SIDE)
        description = f"{self.name}, {self.n:,} of the {_COUNTS[self.split]:,} {self.split} images"
        description += f", {self.side} x {self.side} pixels" if self.side < SIDE else ""
        description += f" ({MARK})" if self.name == _JPEG else ""
        fields = {"x": torch.from_numpy(smaller(x, self.side)), "y": torch.from_numpy(y)}
        facts = {"copy": "JPEG"} if self.name == _JPEG else {}
        return Dataset(fields, description, facts, self.transforms)


def _unpacked(name: str, split: str, chosen: npt.NDArray[np.int64]) -> tuple[UInt8Array, UInt8Array]:
    """Return classes (n,) and pixels (n, 3072) from the archive of the binary version."""
    file = CATALOGUE[name].files[0].name
    members, labels = _MEMBERS[name]
    mismatch = UserError(
        f"{file} does not hold the images of {name}; delete it and fetch it again: mhrun fetch {name}."
    )
    parts = []
    try:
        with tarfile.open(fileobj=io.BytesIO(content(name, file)), mode="r:gz") as archive:
            for member in members[split]:
                # By its name, into memory: no path of the archive is used
                stream = archive.extractfile(member)
                if stream is None:
                    raise mismatch
                parts.append(np.frombuffer(stream.read(), np.uint8))
    except (tarfile.TarError, KeyError, OSError, EOFError) as error:
        raise mismatch from error
    rows = np.concatenate(parts)
    if len(rows) != _COUNTS[split] * (labels + PIXELS):
        raise mismatch
    rows = rows.reshape(_COUNTS[split], labels + PIXELS)[chosen]
    return rows[:, labels - 1], rows[:, labels:]


def _zip() -> Path:
    path = data_dir() / _JPEG / "images.zip"
    if not path.is_file():
        raise UserError(
            f"There is no {path}, a copy of CIFAR-10 that cannot be downloaded; take the publishers' images with "
            "data.name=cifar10 ('mhrun fetch cifar10'), or set MHRUN_DATA_DIR to the folder with the copy."
        )
    return path


def _decoded(_name: str, split: str, chosen: npt.NDArray[np.int64]) -> tuple[UInt8Array, UInt8Array]:
    """Return classes (n,) and pixels (n, 3072) from the JPEG copy: ``SPLIT/CLASS/NUMBER.jpg`` in a zip file."""
    from PIL import Image

    path = _zip()
    mismatch = UserError(
        f"{path} does not hold the 60,000 images of CIFAR-10 as JPEG files; put the copy there again."
    )
    labels, images = np.empty(len(chosen), np.uint8), np.empty((len(chosen), PIXELS), np.uint8)
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(n for n in archive.namelist() if n.startswith(f"{split}/") and n.endswith(".jpg"))
            if len(names) != _COUNTS[split]:
                raise mismatch
            # The order within a split is lost, and a class after the other would be of no use.
            names = [names[i] for i in np.random.default_rng(0).permutation(len(names))]
            for position, row in enumerate(chosen):
                if archive.getinfo(names[row]).file_size > _LARGEST:
                    raise mismatch
                with Image.open(io.BytesIO(archive.read(names[row])), formats=["JPEG"]) as image:
                    if image.size != (SIDE, SIDE):
                        raise mismatch
                    pixels = np.asarray(image.convert("RGB"))
                labels[position] = CLASSES.index(names[row].split("/")[1])
                images[position] = pixels.transpose(2, 0, 1).ravel()
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise mismatch from error
    return labels, images
