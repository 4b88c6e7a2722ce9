"""Two classes of MNIST and any number of deformed images of them: a surrogate of infinite MNIST."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from mhrun.array_cache import generated
from mhrun.array_types import Int32Array, UInt8Array
from mhrun.data.dataset import Dataset
from mhrun.data.files import CATALOGUE
from mhrun.data.mnist_pairs import PIXELS, MnistPair
from mhrun.errors import Refusal

_SIDE = 28
_CHUNK = 512
_UNIT = 256  # displacements and weights are whole 256ths, so that all arithmetic on pixels is exact
_VERSION = 1  # version of the recipe


class DeformedPair:
    """MNIST's training images of two digits, then deformed ones: ``x`` (n, 784) uint8, ``y`` (n,) int8.

    A deformed image is a random original sampled at displaced positions: bilinear, zero outside. The displacements
    along the two axes are two different fields of a pool; a field is uniform noise on (-1, 1) after a Gaussian filter,
    scaled to a root mean square of `displacement` pixels. This replaces infinite MNIST (Loosli, Canu & Bottou 2007),
    whose images are not available offline, with `displacement` set so that MHMiniBatch reads about as many data as
    Seita et al. (2017) report. It is made once and kept as a memory-mapped file. With the same seed, a smaller set is
    the beginning of a larger one. y and the pixels are as in `MnistPair`.

    Args:
        n: how many images, originals included.
        digits: the two digits; y = +1 for the first.
        seed: of the deformations.
        displacement: root mean square, in pixels.
        smoothness: standard deviation of the Gaussian filter, in pixels.
        fields: number of fields in the pool.

    Raises:
        Refusal: an invalid setting, or fewer images than originals.
    """

    def __init__(
        self,
        n: int = 100_000,
        digits: Sequence[int] = (1, 7),
        seed: int = 0,
        displacement: float = 0.8,
        smoothness: float = 4.0,
        fields: int = 400,
    ) -> None:
        self._originals = MnistPair(digits)
        if n < self._originals.n:
            raise Refusal(f"n = {n:,} is less than the {self._originals.n:,} originals; choose more.")
        if displacement < 0 or smoothness <= 0 or fields < 2 or seed < 0:
            raise Refusal("DeformedPair needs displacement and seed >= 0, smoothness > 0 and fields >= 2.")
        self.n = n
        self.digits = self._originals.digits
        self.seed = seed
        self.displacement = float(displacement)
        self.smoothness = float(smoothness)
        self.fields = fields

    def load(self) -> Dataset:
        """Return the data set; the first call takes seconds.

        Raises:
            UserError: see `MnistPair.load`.
        """
        recipe = [_VERSION, self.n, self.digits, self.seed, self.displacement, self.smoothness, self.fields]
        source = [file.sha256 for file in CATALOGUE["mnist"].files]
        stored = generated("deformed", [*recipe, source], self.n * (PIXELS + 1), np.uint8, self._fill)
        x, y = stored[: self.n * PIXELS].reshape(self.n, PIXELS), stored[self.n * PIXELS :].view(np.int8)
        count = self.n - self._originals.n
        description = (
            f"{self._originals.n:,} MNIST training images of the digits {self.digits[0]} (y = +1) and "
            f"{self.digits[1]} (y = -1) and {count:,} deformed ones (displacement {self.displacement:g} "
            "pixel, root mean square): a surrogate of infinite MNIST"
        )
        return Dataset({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, description)

    def _fill(self, out: UInt8Array) -> None:
        originals = self._originals.load().fields
        count = self._originals.n
        x, y = out[: self.n * PIXELS].reshape(self.n, PIXELS), out[self.n * PIXELS :]
        x[:count], y[:count] = originals["x"].numpy(), originals["y"].numpy().view(np.uint8)
        starts = range(count, self.n, _CHUNK)
        # One generator per chunk, and whole chunks are drawn: the images do not depend on n.
        first, *seeds = np.random.SeedSequence(self.seed).spawn(1 + len(starts))
        pool = self._pool(np.random.default_rng(first))
        images = originals["x"].numpy().reshape(count, _SIDE, _SIDE)
        for start, seed in zip(starts, seeds, strict=True):
            rng = np.random.default_rng(seed)
            source, down, across = rng.integers(0, [[count], [self.fields], [self.fields - 1]], (3, _CHUNK))
            across += across >= down  # another field
            part = slice(0, min(_CHUNK, self.n - start))
            x[start : start + _CHUNK] = deformed(images[source[part]], pool[down[part]], pool[across[part]])
            y[start : start + _CHUNK] = y[source[part]]

    def _pool(self, rng: np.random.Generator) -> Int32Array:
        """Return the fields (fields, 784), in 256ths of a pixel."""
        from scipy.ndimage import gaussian_filter

        noise = rng.uniform(-1, 1, (self.fields, _SIDE, _SIDE))
        # With zeros around the noise; with mirrored edges, the middle of an image would hardly be deformed.
        smooth = gaussian_filter(noise, (0, self.smoothness, self.smoothness), mode="constant")
        smooth = smooth.reshape(self.fields, PIXELS)
        scale = self.displacement / np.sqrt((smooth**2).mean(1, keepdims=True))
        return np.rint(_UNIT * scale * smooth).astype(np.int32)


def deformed(images: UInt8Array, down: Int32Array, across: Int32Array) -> UInt8Array:
    """Return images (B, 28, 28) sampled at displaced positions, (B, 784): bilinear, zero outside, rounded to a byte.

    Args:
        images: the images to read.
        down: downward displacement of each pixel, (B, 784), in 256ths of a pixel.
        across: displacement to the right.
    """
    # A margin of zeros that no displacement reaches past.
    margin = 1 + int(max(np.abs(down).max(initial=0), np.abs(across).max(initial=0))) // _UNIT + 1
    side = _SIDE + 2 * margin
    padded = np.pad(images, ((0, 0), (margin, margin), (margin, margin))).reshape(-1)
    position = _UNIT * (margin + np.arange(_SIDE, dtype=np.int32))
    row = np.repeat(position, _SIDE) + down
    column = np.tile(position, _SIDE) + across
    corner = (np.arange(len(images)) * side**2)[:, None] + (row >> 8) * side + (column >> 8)
    row, column = row & (_UNIT - 1), column & (_UNIT - 1)

    def between(at: npt.NDArray[np.int64]) -> Int32Array:  # along the row
        left, right = padded[at].astype(np.int32), padded[at + 1].astype(np.int32)
        return _UNIT * left + column * (right - left)

    above, below = between(corner), between(corner + side)
    return ((_UNIT * above + row * (below - above) + _UNIT**2 // 2) >> 16).astype(np.uint8)
