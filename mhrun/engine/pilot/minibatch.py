"""The minibatch size at which the noise of a log-ratio is small enough."""

from __future__ import annotations

import math

from mhrun.engine.method import Method
from mhrun.kernels import MetropolisHastings

NOISE = 1.0  # largest standard deviation of the minibatch noise of a log-ratio that a pilot allows


def minibatch_size(method: Method, kernel: MetropolisHastings, noise: float, most: float) -> int:
    """Return the least minibatch whose noise has at most this standard deviation, rounded up to three figures.

    Args:
        method: the method.
        kernel: with the minibatch at which the noise was measured.
        noise: the variance of a log-ratio's noise there.
        most: standard deviation that the noise may have.
    """
    n, m = method.target.n, kernel.pairing.m or method.target.n
    if noise <= 0 or method.target.batches.error_share(m) <= 0:
        return m
    single = noise_of_one(method, kernel, noise)
    single /= most**2
    least_m = single / (1 + (0.0 if method.target.replacement else single / n))
    digits = max(0, math.floor(math.log10(max(1.0, least_m))) - 2)
    return int(min(n, max(2, math.ceil(least_m / 10**digits) * 10**digits)))


def noise_of_one(method: Method, kernel: MetropolisHastings, noise: float) -> float:
    """Return the variance of one term, times (n / T)^2, from the noise with the minibatch of a kernel."""
    m = kernel.pairing.m or method.target.n
    share = method.target.batches.error_share(m)
    return noise * m / share if share > 0 else 0.0
