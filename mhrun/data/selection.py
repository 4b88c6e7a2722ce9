"""The choice of some images of a split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mhrun.errors import Refusal, check_choice

SPLITS = ("train", "test")


def check_split(split: str) -> None:
    """Check the name of a split.

    Raises:
        Refusal: it is neither ``train`` nor ``test``.
    """
    check_choice("split", split, SPLITS)


@dataclass(frozen=True)
class Selection:
    """Images `skip` to `skip` + `n` of `there`, in the order of the file or a random one.

    Args:
        there: number of images of the split.
        n: number of images selected.
        skip: number of images left out at the beginning.
        shuffle: seed of the random order; None for the order of the file.
    """

    there: int
    n: int
    skip: int
    shuffle: int | None

    @classmethod
    def of(cls, there: int, n: int | None, skip: int, shuffle: int | None) -> Selection:
        """Return the selection of `n` images, or of all after `skip`.

        Raises:
            Refusal: there are not so many images, or the seed is negative.
        """
        count = there - skip if n is None else n
        if skip < 0 or count < 1 or skip + count > there:
            raise Refusal(f"skip = {skip:,} and n = {count:,} want more than the {there:,} images there are.")
        if shuffle is not None and shuffle < 0:
            raise Refusal(f"shuffle = {shuffle} is a seed; it must not be negative.")
        return cls(there, count, skip, shuffle)

    def rows(self) -> npt.NDArray[np.int64]:
        """Return the places (n,) of the selected images in the file."""
        order = np.arange(self.there)
        if self.shuffle is not None:
            order = np.random.default_rng(self.shuffle).permutation(self.there)
        return order[self.skip : self.skip + self.n]
