"""The work on a network: 784-200-10 with ReLU, 159,010 parameters, and MINT with a Langevin proposal (Li & Wong 2017).

The step is theta' = theta + rate g + sqrt(2 rate / c) z with g the gradient of the mean log-likelihood on m images, and
the log-ratio c (mean' - mean) + log q(theta' -> theta) - log q(theta -> theta'), all on the same images, drawn
independently; c = m^alpha. Beside it a plain torch step of gradient descent on as many images, which has one pass
where MINT has two.
"""

from __future__ import annotations

import numpy as np

N = 50_000
LAYERS = (784, 200, 10)
M = 200
C = M**0.99
RATE = 0.05


def images(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (n, 784) uint8, of which k stands for k/255, and classes (n,) int64."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, LAYERS[-1], n)
    ink = rng.random((LAYERS[-1], LAYERS[0])) < 0.2  # a mean image for each class
    x = rng.integers(0, 256, (n, LAYERS[0]), dtype=np.uint8) * (
        rng.random((n, LAYERS[0]), np.float32) < np.where(ink[y], 0.6, 0.1)
    )
    return x.astype(np.uint8), y
