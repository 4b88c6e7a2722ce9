"""How well draws of a logistic regression tell the test images apart."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mhrun.data.mnist_pairs import MnistPair
from mhrun.report.vocabulary import Array, Run

_PART = 2048  # draws at a time


@lru_cache(maxsize=2)
def _signed(first: int, second: int, components: int | None = None) -> npt.NDArray[np.float32]:
    """Return y x of the test images (n, D): a draw is right where its product with it is positive."""
    fields = MnistPair([first, second], split="test", components=components).load().fields
    x, y = fields["x"].numpy(), fields["y"].numpy()
    scale = np.float32(255 if x.dtype == np.uint8 else 1)
    return (x.astype(np.float32) / scale * y[:, None]).astype(np.float32)


def signed_images(run: Run, method: str | None = None) -> npt.NDArray[np.float32]:
    """Return the test images of the two digits (n, D), with the sign of their label.

    Of the data of a method, which may have principal components in place of pixels; of the experiment's if None.
    """
    _ = run.target  # which knows where data are looked for
    own_data = run.config["methods"][method].get("data") if method else None
    node = own_data or run.config["data"]
    first, second = node["digits"]
    components = node.get("components")
    return _signed(int(first), int(second), None if components is None else int(components))


def accuracy(run: Run, theta: Array, method: str | None = None) -> Array:
    """Return the share of the test images that each draw (..., D) has right; a tie is half right."""
    images = signed_images(run, method)
    flat = theta.reshape(-1, theta.shape[-1]).astype(np.float32)
    shares = np.empty(len(flat))
    for start in range(0, len(flat), _PART):
        margin = flat[start : start + _PART] @ images.T
        shares[start : start + _PART] = (margin > 0).mean(axis=1) + 0.5 * (margin == 0).mean(axis=1)
    return shares.reshape(theta.shape[:-1])


def running_mean(draws: Array) -> Array:
    """Return the mean of the draws (C, S, D) so far."""
    return np.cumsum(draws, axis=1) / np.arange(1, draws.shape[1] + 1)[:, None]
