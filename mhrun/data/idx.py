"""The IDX format of MNIST: unsigned bytes after their dimensions."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from mhrun.errors import UserError

_UNSIGNED_BYTES = 0x08


def parse_idx(content: bytes, what: str) -> npt.NDArray[np.uint8]:
    """Return the array in the content of an IDX file, read-only and in the file's shape.

    Layout: two zero bytes, the type, the number of dimensions, each dimension as a big-endian 32-bit
    integer, then the values in C order (LeCun, Cortes & Burges, "The MNIST database").

    Args:
        content: the uncompressed content.
        what: name of the file, for messages.

    Raises:
        UserError: it is not an IDX file of unsigned bytes, or it is truncated.
    """
    if len(content) < 4 or content[:3] != bytes((0, 0, _UNSIGNED_BYTES)):
        raise UserError(f"{what} is not an IDX file of unsigned bytes; delete it and fetch it again.")
    first = 4 + 4 * content[3]
    if len(content) >= first:
        shape = struct.unpack(f">{content[3]}I", content[4:first])
        values = np.frombuffer(content, np.uint8, offset=first)
        if len(values) == np.prod(shape, dtype=np.int64):
            return values.reshape(shape)
    raise UserError(
        f"{what} does not hold as many values as its header states; delete it and fetch it again."
    )
