"""Lossless reduction of a page's PNG images."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

_OFF = 24  # of 255: a channel of a pixel may be so far from the original
_MEAN_OFF = 1.5


def lighter(png: bytes) -> bytes:
    """Return a PNG with a palette of 256 colours where that keeps every colour, and as it is where it does not."""
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
