"""Images with ten classes: MNIST and data sets in its format."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from mhrun.data.dataset import Dataset
from mhrun.data.files import CATALOGUE, content
from mhrun.data.idx import parse_idx
from mhrun.data.selection import Selection, check_split
from mhrun.data.transforms import transforms
from mhrun.errors import Refusal, UserError, nearest

PIXELS = 784  # 28 x 28
_FILES = {"train": ("train", 60_000), "test": ("t10k", 10_000)}


class Images:
    """Images of a split: ``x`` (n, 784) uint8, where k stands for the pixel k/255, and ``y`` (n,) int64, the class.

    Args:
        name: ``mnist``, ``fashion-mnist``, or ``notmnist``, which has no training images here.
        split: ``train`` (60,000) or ``test`` (10,000).
        n: number of images; None for all after `skip`.
        skip: number of images left out at the beginning.
        shuffle: seed of a random order in which `skip` and `n` count, so that they select disjoint random parts. None
            keeps the order of the file.
        permuted: share of the labels in minibatches that are permuted among each other, anew in each pass (Luo et al.
            2020, section 4.2).

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        name: str = "mnist",
        split: Literal["train", "test"] = "train",
        n: int | None = None,
        skip: int = 0,
        shuffle: int | None = None,
        permuted: float = 0.0,
    ) -> None:
        splits = _splits()
        if name not in splits:
            raise Refusal(f"there are no images '{name}'.{nearest(name, splits)}")
        check_split(split)
        if split not in splits[name]:
            raise Refusal(f"{name} has no {split} images; choose split={' or '.join(splits[name])}.")
        selection = Selection.of(_FILES[split][1], n, skip, shuffle)
        self.name = name
        self.split = split
        self.n = selection.n
        self.skip = skip
        self.shuffle = shuffle
        self.transforms = transforms(self.n, "none", permuted, None)

    def load(self) -> Dataset:
        """Return the data set, from the files in the data folder.

        Raises:
            UserError: the files are missing, damaged, or hold other images.
        """
        prefix, count = _FILES[self.split]
        images, labels = (
            parse_idx(content(self.name, file), file)
            for file in (f"{prefix}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        )
        if images.shape != (count, 28, 28) or labels.shape != (count,):
            raise UserError(
                f"The {self.split} images of {self.name} should be {count:,} of 28 x 28 and are {images.shape}; "
                f"delete the files and fetch them again: mhrun fetch {self.name}."
            )
        chosen = Selection(count, self.n, self.skip, self.shuffle).rows()
        x, y = images.reshape(count, PIXELS)[chosen], labels[chosen].astype(np.int64)
        return Dataset(
            {"x": torch.from_numpy(x), "y": torch.from_numpy(y)},
            f"{self.name}, {self.n:,} of the {count:,} {self.split} images",
            transforms=self.transforms,
        )


def _splits() -> dict[str, list[str]]:
    """Return the data sets of this format and their splits."""
    files = {name: {file.name for file in entry.files} for name, entry in CATALOGUE.items()}
    by_name = {
        name: [split for split, (prefix, _) in _FILES.items() if f"{prefix}-images-idx3-ubyte.gz" in present]
        for name, present in files.items()
    }
    return {name: splits for name, splits in by_name.items() if splits}
