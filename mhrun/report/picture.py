"""Reduction of a page's PNG images, with a loss that is not seen."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

_OFF = 24  # of 255: a channel of a pixel may be so far from the original
_MEAN_OFF = 1.5


def lighter(png: bytes) -> bytes:
    """Return a PNG with a palette of 256 colours where that is smaller and nearly the same, else as it is."""
    with Image.open(io.BytesIO(png)) as picture:
        plain = Image.new("RGB", picture.size, "white")
        plain.paste(picture, mask=picture.getchannel("A") if "A" in picture.getbands() else None)
    small = plain.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    deviation = np.abs(np.asarray(small.convert("RGB"), dtype=int) - np.asarray(plain, dtype=int))
    if deviation.max(initial=0) > _OFF or deviation.mean() > _MEAN_OFF:
        return png
    buffer = io.BytesIO()
    small.save(buffer, format="png", optimize=True)
    packed = buffer.getvalue()
    return packed if len(packed) < len(png) else png
