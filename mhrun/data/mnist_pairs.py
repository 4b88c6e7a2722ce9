"""Two classes of MNIST, for logistic regression."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from mhrun.data.dataset import Dataset
from mhrun.data.files import content
from mhrun.data.idx import parse_idx
from mhrun.errors import Refusal, UserError, check_choice

PIXELS = 784  # 28 x 28
_FILES = {"train": "train", "test": "t10k"}
# Number of images of each digit.
_COUNTS = {
    "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
}


class MnistPair:
    """The images of two digits, in the order of MNIST's files: ``x`` (n, 784) uint8, ``y`` (n,) int8.

    y is +1 for the first digit and -1 for the second. A byte k stands for the pixel k/255. Bytes are exact and take a
    quarter of the memory of float32; minibatches and full passes are faster too, although each datum is converted when
    it is used.

    With `components` = k, ``x`` is (n, k) float32: the coordinates of the pixels, less the mean of the training images,
    along the first k principal components of the training images, V_k^T (x / 255 - mean), for either split.

    Args:
        digits: the two digits.
        split: ``train`` or ``test``.
        n: number of images, for settings that are computed from it; checked.
        components: number of principal components to use instead of pixels; None for the pixels.

    Raises:
        Refusal: an invalid setting.
    """

    def __init__(
        self,
        digits: Sequence[int] = (1, 7),
        split: Literal["train", "test"] = "train",
        n: int | None = None,
        components: int | None = None,
    ) -> None:
        check_choice("split", split, _FILES)
        if len(set(digits)) != 2 or len(digits) != 2 or not set(digits) <= set(range(10)):
            raise Refusal(f"digits = {list(digits)} must be two different digits, such as [1, 7].")
        self.digits = tuple(int(digit) for digit in digits)
        self.split = split
        self.counts = tuple(_COUNTS[split][digit] for digit in self.digits)
        self.n = sum(self.counts)
        if n is not None and n != self.n:
            raise Refusal(f"n = {n:,} is not how many images there are; set data.n={self.n}.")
        if components is not None and not 1 <= components <= PIXELS:
            raise Refusal(f"components = {components} must lie within 1 and {PIXELS}, or be null.")
        self.components = components

    def load(self) -> Dataset:
        """Return the data set, from the files in the data folder.

        Raises:
            UserError: the files are missing, damaged, or have other counts than MNIST.
        """
        x, y = self._images(self.split)
        words = " and ".join(
            f"{count:,} of digit {digit} (y = {sign})"
            for count, digit, sign in zip(self.counts, self.digits, ("+1", "-1"), strict=True)
        )
        description = f"MNIST, {self.split} images: {words}"
        if self.components is not None:
            train = x if self.split == "train" else self._images("train")[0]
            x = _projected(x, train, self.components)
            description += f"; {self.components} principal components of the training images"
        return Dataset({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, description)

    def _images(self, split: str) -> tuple[npt.NDArray[Any], npt.NDArray[np.int8]]:
        """Return the pixels (n, 784) and the labels (n,) of a split."""
        counts = tuple(_COUNTS[split][digit] for digit in self.digits)
        images, labels = (
            parse_idx(content("mnist", name), name)
            for name in (f"{_FILES[split]}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        )
        found = tuple(int((labels == digit).sum()) for digit in self.digits)
        if found != counts or images.shape != (len(labels), 28, 28):
            raise UserError(
                f"MNIST's {split} images should hold {counts} of the digits {self.digits} and hold "
                f"{found}, of shape {images.shape}; delete the files and fetch them again: mhrun fetch mnist."
            )
        chosen = np.isin(labels, self.digits)
        x = images[chosen].reshape(-1, PIXELS)
        y = np.where(labels[chosen] == self.digits[0], np.int8(1), np.int8(-1))
        return x, y


def _projected(
    x: npt.NDArray[np.uint8], train: npt.NDArray[np.uint8], components: int
) -> npt.NDArray[np.float32]:
    """Return the coordinates (n, components) of images along the principal components of the training images.

    The largest entry of each component is positive, so that its sign is the same on every machine.
    """
    pixels = train.astype(np.float64) / 255
    mean = pixels.mean(axis=0)
    vectors = np.linalg.eigh(np.cov(pixels, rowvar=False))[1][:, ::-1][:, :components]
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.sign(vectors[largest, np.arange(components)])
    return ((x.astype(np.float64) / 255 - mean) @ vectors).astype(np.float32)
