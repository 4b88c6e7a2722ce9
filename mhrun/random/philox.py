"""Philox4x32-10 in torch, and the numbers that are made of its words.

The same words and indices as in `mhrun.native.philox`; normals agree to rounding. Words are 32 bits, stored as int64.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

MUL_0, MUL_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
LOW = 0xFFFFFFFF


def philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, key: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return Philox4x32-10 of counters, given as broadcastable int64 tensors with values below 2^32."""
    k0, k1 = key & LOW, key >> 32
    for _ in range(10):
        # The products need 64 bits; int64 wraps, which leaves the bits right once the sign is masked off.
        p0, p1 = c0 * MUL_0, c2 * MUL_1
        c0, c1, c2, c3 = (
            ((p1 >> 32) & LOW) ^ c1 ^ k0,
            p1 & LOW,
            ((p0 >> 32) & LOW) ^ c3 ^ k1,
            p0 & LOW,
        )
        k0, k1 = (k0 + WEYL_0) & LOW, (k1 + WEYL_1) & LOW
    return c0, c1, c2, c3


def uniforms_of(words: Tensor) -> Tensor:
    """Return one uniform in (0, 1) from the first two words of each stream (..., blocks, 4)."""
    return unit_of(words[..., 0, 0], words[..., 0, 1])


def unit_of(one: Tensor, two: Tensor) -> Tensor:
    """Return uniforms in (0, 1] with 53 random bits from two words each; 1, by rounding, has a probability of 2^-53."""
    return ((((one >> 5) << 26) + (two >> 6)).double() + 0.5) * 2.0**-53


def normals_of(words: Tensor) -> Tensor:
    """Return standard normals (K, C, 4 blocks) from words (K, C, blocks, 4), by Box and Muller's transform."""
    unit = (words.double() + 0.5) * 2.0**-32
    radius, angle = (-2.0 * unit[..., 0::2].log()).sqrt_(), 2.0 * math.pi * unit[..., 1::2]
    pairs = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=-1)  # (K, C, blocks, 2, 2)
    return pairs.flatten(start_dim=2)


def scaled_of(low: Tensor, high: Tensor, n: int | Tensor) -> Tensor:
    """Return floor(n * (2^32 high + low) / 2^64)."""
    return (high * n + ((low * n) >> 32)) >> 32


def independent_of(words: Tensor, n: int, m: int) -> Tensor:
    """Return m independent uniform indices below n (..., m) from words (..., 4): two from each block."""
    first, second = scaled_of(words[..., 0], words[..., 1], n), scaled_of(words[..., 2], words[..., 3], n)
    return torch.cat((first, second[..., : m - first.shape[-1]]), dim=-1)


def stream_of(words: Tensor, n: int | Tensor) -> Tensor:
    """Return the stream of uniform indices below n (..., 2 blocks): elements 2b and 2b + 1 are the halves of block b.

    A tensor n (blocks, 2) has the bound of each.
    """
    return scaled_of(words[..., 0::2], words[..., 1::2], n).flatten(start_dim=-2)


def distinct_of(candidates: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return the first m distinct values of each stream (R, K), in order of first occurrence, (R, m).

    The second result () is True if a stream has fewer than m; the values are then invalid.
    """
    ascending, order = candidates.sort(dim=-1, stable=True)  # equal values stay in order
    repeats = torch.zeros_like(candidates, dtype=torch.bool)
    repeats.scatter_(-1, order[:, 1:], ascending[:, 1:] == ascending[:, :-1])
    place = (~repeats).cumsum(-1) - 1
    short = (place[:, -1] < m - 1).any()
    place.masked_fill_(repeats, m).clamp_max_(m)  # surplus values go to column m, which is dropped
    distinct = candidates.new_zeros(len(candidates), m + 1).scatter_(-1, place, candidates)
    return distinct[:, :m], short


@lru_cache(maxsize=64)
def enough(n: int, m: int) -> int:
    """Return a number of uniform indices below n of which m <= n // 2 are distinct, except with probability 1e-18.

    The number of draws until m values are distinct is a sum of geometric variables. By Chernoff's inequality it
    exceeds m + e - 1 with probability at most z^-e prod_i (1 - i/n) / (1 - z i/n), i = 1..m-1, for every z in
    (1, n / (m - 1)).
    """
    if m == 1:
        return 1
    z = (n / (m - 1)) ** np.linspace(0.02, 0.98, 64)
    if m <= 4096:
        q = np.arange(1, m)[:, None] / n
        cumulant = (np.log1p(-q) - np.log1p(-q * z)).sum(0)
    else:  # each term is bounded by its integral from i to i + 1

        def integral(x: Any) -> Any:  # of log(1 - t) from 0 to x
            return -(1 - x) * np.log1p(-x) - x

        z = z[z * m < n]
        cumulant = n * integral(m / n) - n / z * integral(z * m / n)
    return m - 1 + math.ceil(((18 * math.log(10) + cumulant) / np.log(z)).min())
