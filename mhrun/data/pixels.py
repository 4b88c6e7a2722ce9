"""Images with fewer pixels."""

from __future__ import annotations

import numpy as np

from mhrun.array_types import UInt8Array


def smaller(images: UInt8Array, side: int) -> UInt8Array:
    """Return images (n, channels, s, s) as (n, channels, side, side): means over squares, rounded to bytes."""
    count, channels, size, _ = images.shape
    if side == size:
        return images
    factor = size // side
    sums = images.reshape(count, channels, side, factor, side, factor).sum((3, 5), dtype=np.int32)
    return ((sums + factor * factor // 2) // (factor * factor)).astype(np.uint8)
