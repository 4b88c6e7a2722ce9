"""Augmentation and permuted labels, as functions of counter-based random numbers.

The index of a datum carries its transform: ``row + n (1 + source + n code)``, where `source` is the row whose label it
has and `code` the crop and flip. A plain row number has no transform. Whatever keeps an index, such as a stored
minibatch or a checkpoint, therefore sees the same image and label again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mhrun.errors import Refusal, UserError, check_choice
from mhrun.random import Draws
from mhrun.types import Rows

AUGMENTS = ("none", "code")


@dataclass(frozen=True)
class Transforms:
    """How the data of a minibatch differ from the stored ones.

    Args:
        n: number of data.
        pad: images (channels, side, side) are shifted by up to this many pixels along each axis, with zeros outside,
            and mirrored with probability 1/2: a function of step, chain and place in the minibatch. 0: neither.
        permuted: share of the labels that are permuted among each other, anew in each pass of n // m steps.
        pass_size: m, the data of a step. A minibatch of another size, such as that of an exchange, then has the labels
            of the step's pass too. None: the size of each minibatch, or n where it grows: a pass is then one step.

    Raises:
        Refusal: an invalid setting.
    """

    n: int
    pad: int = 0
    permuted: float = 0.0
    pass_size: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pad, int) or self.pad < 0:
            raise Refusal(f"pad = {self.pad!r} must be a whole number of pixels, 0 or more.")
        if not 0 <= self.permuted <= 1:
            raise Refusal(
                f"permuted = {self.permuted:g} is a share of the labels; it must lie between 0 and 1."
            )

    def check(self, fields: Mapping[str, Tensor]) -> None:
        """Refuse data that are not as many as `n`, or no square images where they are to be moved.

        Raises:
            UserError: such data.
        """
        n = len(next(iter(fields.values())))
        if n != self.n:
            raise UserError(f"The transforms are of n = {self.n:,} data, and the data set has {n:,}.")
        if self.pad:
            shape = tuple(fields["x"].shape[1:]) if "x" in fields else ()
            if len(shape) != 3 or shape[1] != shape[2]:
                raise UserError(
                    f"pad = {self.pad} shifts images, a field x (n, channels, side, side); a datum has the shape "
                    f"{shape}."
                )
        if self.permuted and "y" not in fields:
            raise UserError(
                f"permuted = {self.permuted:g} permutes the labels, a field y, which is not there."
            )

    def index(self, index: Tensor, draws: Draws, start: int = 0, rows: Tensor | None = None) -> Tensor:
        """Return row numbers (C, m) with the transforms of this step.

        Args:
            index: the row numbers.
            draws: random numbers of the step.
            start: place of the first of them in the minibatch.
            rows: the chains whose minibatch grows; None for all, and for a minibatch that is drawn at once.
        """
        code: Tensor | int = 0
        if self.pad:
            common = rows is None and len(index) == 1  # one minibatch for all chains, or one chain
            code = draws.choices(self.codes, index.shape[1], start=start, rows=rows, common=common)
        source = index
        if self.permuted:
            size = index.shape[1] if rows is None else self.n
            source = draws.shuffled_share(self.n, self.permuted, self.pass_size or size)[index]
        return index + self.n * (1 + source + self.n * code)

    @property
    def codes(self) -> int:
        """The number of crops and flips."""
        return 2 * (2 * self.pad + 1) ** 2

    def rows(self, fields: Mapping[str, Tensor], index: Tensor) -> Rows:
        """Return the data at `index` (C or 1, m), transformed: field name -> (C or 1, m, ...)."""
        row, rest = index % self.n, index // self.n
        source = torch.where(rest > 0, (rest - 1) % self.n, row)
        batch = {}
        for name, field in fields.items():
            at = source if name == "y" else row
            batch[name] = field.index_select(0, at.reshape(-1)).reshape(*index.shape, *field.shape[1:])
        if self.pad:
            plain = self.codes // 2 - 1  # no shift, no flip
            code = torch.where(rest > 0, (rest - 1) // self.n, plain)
            batch["x"] = moved(batch["x"], code, self.pad)
        return batch


def transforms(n: int, augment: str, permuted: float, side: int | None) -> Transforms | None:
    """Return the transforms that a data set declares, or None.

    Args:
        n: number of data.
        augment: ``none``, or ``code``: crops of images padded by an eighth of their side, and mirror images (the
            code of Zhang et al. 2020).
        permuted: share of permuted labels.
        side: of the images; None if the data are no square images with channels.

    Raises:
        Refusal: an invalid setting.
    """
    check_choice("augment", augment, AUGMENTS)
    if augment == "code" and side is None:
        raise Refusal("augment=code needs images with channels; choose data=cifar10.")
    pad = max(1, side // 8) if augment == "code" and side is not None else 0
    return Transforms(n, pad, permuted) if pad or permuted else None


def moved(images: Tensor, code: Tensor, pad: int) -> Tensor:
    """Return images (C, m, channels, s, s) cropped and mirrored: out[y, x] = padded image[y + a, x + b], or with s-1-x.

    `code` (C, m) is 2 ((2 pad + 1) a + b) + flip, with a and b in 0 .. 2 pad: the crop of an image padded by `pad`.
    """
    side = images.shape[-1]
    positions = torch.arange(side, device=images.device)
    flip, shift = (code % 2)[..., None], code // 2
    down, across = shift // (2 * pad + 1) - pad, shift % (2 * pad + 1) - pad
    y = positions + down[..., None]  # (C, m, s)
    x = torch.where(flip > 0, side - 1 - positions, positions) + across[..., None]
    inside = ((y >= 0) & (y < side))[..., :, None] & ((x >= 0) & (x < side))[..., None, :]
    at = y.clamp(0, side - 1)[..., :, None] * side + x.clamp(0, side - 1)[..., None, :]
    at = at.flatten(-2)[..., None, :].expand(*images.shape[:-2], side * side)
    pixels = images.flatten(-2).gather(-1, at).reshape(images.shape)
    return pixels * inside[..., None, :, :]
