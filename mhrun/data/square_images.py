"""Images in the format of MNIST as squares of pixels, for convolutions."""

from __future__ import annotations

from typing import Literal

import torch

from mhrun.data.dataset import Dataset
from mhrun.data.images import Images
from mhrun.data.pixels import smaller
from mhrun.errors import Refusal

SIDE = 28


class SquareImages(Images):
    """Images with one channel: ``x`` (n, 1, side, side) uint8, where k stands for k/255, and ``y`` (n,), the class.

    Args:
        name: see `Images`, as the arguments up to `permuted`.
        split: `train` or `test`.
        n: number of images; None for all after `skip`.
        skip: number of images left out at the beginning.
        shuffle: seed of a random order.
        permuted: share of the labels in minibatches that are permuted.
        side: 28; 14 or 7 for means over squares of 2 x 2 or 4 x 4 pixels.

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
        side: int = SIDE,
    ) -> None:
        super().__init__(name, split, n, skip, shuffle, permuted)
        if side not in (28, 14, 7):
            raise Refusal(f"side = {side} must be 28, 14 or 7 pixels.")
        self.side = side

    def load(self) -> Dataset:
        """Return the data set, from the files in the data folder.

        Raises:
            UserError: the files are missing, damaged, or hold other images.
        """
        original = super().load()
        images = original.fields["x"].numpy().reshape(-1, 1, SIDE, SIDE)
        description = original.description + (
            f", {self.side} x {self.side} pixels" if self.side < SIDE else ""
        )
        fields = {"x": torch.from_numpy(smaller(images, self.side)), "y": original.fields["y"]}
        return Dataset(fields, description, original.facts, self.transforms)
