"""The work on logistic regression: 784 weights, as many images as MNIST has 1s and 7s, as sparse as they are.

MINT (Li & Wong 2017) reads m images, drawn independently, at a high temperature; plain Metropolis reads all of them.
Both have a flat prior, begin at 0 and move by step size * z. What is kept: of every step its statistics, of
the weights the last ones.
"""

from __future__ import annotations

import numpy as np

N = 13_007
DIM = 784
INK = 0.2  # share of pixels that are not 0
M = 100
TEMPERATURE = 100.0
STEP_SIZE = 0.05  # of MINT
FULL_STEP_SIZE = 0.008  # of Metropolis on all data, for an acceptance rate of about 0.3


def images(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (n, DIM) uint8, of which k stands for k/255, and labels (n,) int8, +1 and -1."""
    rng = np.random.default_rng(0)
    x = rng.integers(1, 256, (n, DIM), dtype=np.uint8) * (rng.random((n, DIM), np.float32) < INK)
    products = x / np.float32(255) @ rng.normal(0.0, 0.2, DIM).astype(np.float32)
    return x, np.where(rng.logistic(size=n) < products, np.int8(1), np.int8(-1))
