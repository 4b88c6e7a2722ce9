"""The random numbers of `mhrun.random`, for one chain and one step at a time.

Words of 32 bits are computed as uint64, the type of the 32 x 32 -> 64 bit multiplication of vector units, so the
compiler needs no conversions (2.7 times faster here).
A key is the pair (low word, high word) as uint64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mhrun.native.compiler import narrow_form, piece
from mhrun.native.maths import cos_sin_32, cos_sin_64, log_64, log_unit_32

f32, u64 = np.float32, np.uint64
LOW = u64(0xFFFFFFFF)
S32 = u64(32)
MUL_0, MUL_1 = u64(0xD2511F53), u64(0xCD9E8D57)
WEYL_0, WEYL_1 = u64(0x9E3779B9), u64(0xBB67AE85)
# Purposes, at their position in the counter (see mhrun.random.Purpose); `use` is added at 1 << 20.
PROPOSAL, MINIBATCH, ACCEPT, EXCHANGE = u64(1 << 24), u64(2 << 24), u64(3 << 24), u64(4 << 24)
NOISE, GRADIENT, ARRIVALS = u64(5 << 24), u64(6 << 24), u64(7 << 24)
USE = u64(1 << 20)
BLOCKS = 64  # of four words, whose normals are made at once
FEW = 12  # blocks below which words and normals are made in one loop
FEW_32 = 4  # the same for float32


def split_key(key: int) -> tuple[np.uint64, np.uint64]:
    """Return a 64-bit key as two words."""
    return u64(key & 0xFFFFFFFF), u64(key >> 32)


@piece
def philox(block: Any, purpose: Any, draw: Any) -> Any:
    """Philox4x32-10 of the counter (block, step, purpose, chain): four words."""
    k0, k1 = draw.key
    step = draw.step
    c0, c1, c2, c3 = u64(block), step & LOW, purpose | ((step >> S32) & u64(0xFFFFF)), draw.chain
    for _ in range(10):
        p0 = (c0 & LOW) * MUL_0
        p1 = (c2 & LOW) * MUL_1
        c0, c1, c2, c3 = (p1 >> S32) ^ c1 ^ k0, p1, (p0 >> S32) ^ c3 ^ k1, p0
        # Carries beyond 32 bits gather in the upper half, which the products leave out.
        k0 = k0 + WEYL_0
        k1 = k1 + WEYL_1
    return c0 & LOW, c1 & LOW, c2 & LOW, c3 & LOW


@piece
def uniform(purpose: Any, draw: Any) -> Any:
    """A uniform in (0, 1] with 53 random bits; 1, by rounding, has a probability of 2^-53."""
    a, b, _c, _d = philox(u64(0), purpose, draw)
    return (np.float64(((a >> u64(5)) << u64(26)) + (b >> u64(6))) + 0.5) * 2.0**-53


@piece
def normal_pair(a: Any, b: Any) -> Any:
    """Two standard normals from two words, given as float64, by Box-Muller."""
    r = math.sqrt(-2.0 * log_64((a + 0.5) * 2.0**-32))
    x, y = cos_sin_64((b + 0.5) * 2.0**-32)
    return r * x, r * y


@piece
def normals(block: Any, purpose: Any, draw: Any) -> Any:
    """Four standard normals."""
    a, b, c, d = philox(block, purpose, draw)
    x, y = normal_pair(np.float64(a), np.float64(b))
    z, w = normal_pair(np.float64(c), np.float64(d))
    return x, y, z, w


@piece
def normal_pair_32(a: Any, b: Any) -> Any:
    """Two standard normals, float32, from two words, given as uint32: those of `normal_pair` to 4e-7 of each."""
    r = np.sqrt(f32(-2.0) * log_unit_32(a))
    x, y = cos_sin_32(b)
    return r * x, r * y


@piece
def fill_normals(out: Any, purpose: Any, draw: Any) -> None:
    """Fill out (D,) with standard normals."""
    n_blocks = len(out) // 4
    if out.itemsize == 8 and n_blocks >= FEW:  # float64, which can hold words
        # Words first, then normals in their place: the compiler gives one loop of both half of the vector width.
        for first in range(0, n_blocks, BLOCKS):
            tile = out[4 * first : 4 * min(first + BLOCKS, n_blocks)]
            for block in range(len(tile) // 4):
                a, b, c, d = philox(u64(first + block), purpose, draw)
                tile[4 * block] = np.float64(a)
                tile[4 * block + 1] = np.float64(b)
                tile[4 * block + 2] = np.float64(c)
                tile[4 * block + 3] = np.float64(d)
            for pair in range(len(tile) // 2):
                x, y = normal_pair(tile[2 * pair], tile[2 * pair + 1])
                tile[2 * pair] = x
                tile[2 * pair + 1] = y
    else:
        for block in range(n_blocks):  # without a branch, so that it is vectorised
            x, y, z, w = normals(u64(block), purpose, draw)
            out[4 * block] = x
            out[4 * block + 1] = y
            out[4 * block + 2] = z
            out[4 * block + 3] = w
    if 4 * n_blocks < len(out):
        last_block = normals(u64(n_blocks), purpose, draw)
        for d in range(4 * n_blocks, len(out)):
            out[d] = last_block[d - 4 * n_blocks]


@narrow_form(fill_normals)
def fill_normals_32(out: Any, purpose: Any, draw: Any) -> None:
    """Fill out (D,), float32, with standard normals; the arithmetic is that of twice as many lanes."""
    n_blocks = -(-len(out) // 4)
    if n_blocks < FEW_32:  # without a workspace
        for block in range(n_blocks):
            a, b, c, d = philox(u64(block), purpose, draw)
            x, y = normal_pair_32(np.uint32(a), np.uint32(b))
            z, w = normal_pair_32(np.uint32(c), np.uint32(d))
            for place, number in enumerate((x, y, z, w)):
                if 4 * block + place < len(out):
                    out[4 * block + place] = number
        return
    words = np.empty(4 * BLOCKS, np.uint32)
    for first in range(0, n_blocks, BLOCKS):
        blocks = min(BLOCKS, n_blocks - first)
        for block in range(blocks):
            a, b, c, d = philox(u64(first + block), purpose, draw)
            words[4 * block] = np.uint32(a)
            words[4 * block + 1] = np.uint32(b)
            words[4 * block + 2] = np.uint32(c)
            words[4 * block + 3] = np.uint32(d)
        tile = out[4 * first : 4 * (first + blocks)]
        pairs = len(tile) // 2
        for pair in range(pairs):
            x, y = normal_pair_32(words[2 * pair], words[2 * pair + 1])
            tile[2 * pair] = x
            tile[2 * pair + 1] = y
        if 2 * pairs < len(tile):
            tile[2 * pairs] = normal_pair_32(words[2 * pairs], words[2 * pairs + 1])[0]


@piece
def fill_uniforms(out: Any, purpose: Any, draw: Any) -> None:
    """Fill out (D,), float64, with uniforms in (0, 1) of 32 random bits each."""
    n_blocks = len(out) // 4
    for block in range(n_blocks):
        x, y, z, w = philox(u64(block), purpose, draw)
        out[4 * block] = (np.float64(x) + 0.5) * 2.0**-32
        out[4 * block + 1] = (np.float64(y) + 0.5) * 2.0**-32
        out[4 * block + 2] = (np.float64(z) + 0.5) * 2.0**-32
        out[4 * block + 3] = (np.float64(w) + 0.5) * 2.0**-32
    if 4 * n_blocks < len(out):
        last_block = philox(u64(n_blocks), purpose, draw)
        for d in range(4 * n_blocks, len(out)):
            out[d] = (np.float64(last_block[d - 4 * n_blocks]) + 0.5) * 2.0**-32


@piece
def scaled(low: Any, high: Any, n: Any) -> Any:
    """floor(n * (2^32 high + low) / 2^64) for n < 2^31."""
    return (high * n + ((low * n) >> S32)) >> S32


@piece
def arrival(j: Any, n: Any, draw: Any) -> Any:
    """Return the numbers of arrival j of a Poisson process: slot below n, coin, gap and uniform, see `random.Marks`."""
    a, b, c, d = philox(u64(2) * j, ARRIVALS, draw)
    slot = scaled(a, b, n)
    coin = (np.float64(((c >> u64(5)) << u64(26)) + (d >> u64(6))) + 0.5) * 2.0**-53
    a, b, c, d = philox(u64(2) * j + u64(1), ARRIVALS, draw)
    gap = -log_64((np.float64(((a >> u64(5)) << u64(26)) + (b >> u64(6))) + 0.5) * 2.0**-53)
    uniform = (np.float64(((c >> u64(5)) << u64(26)) + (d >> u64(6))) + 0.5) * 2.0**-53
    return slot, coin, gap, uniform


@piece
def fill_arrivals(
    start: Any, count: Any, n: Any, draw: Any, slots: Any, coins: Any, gaps: Any, uniforms: Any
) -> None:
    """Fill the arrays with the numbers of arrivals start, ..., start + count - 1."""
    for j in range(count):  # without a branch, so that it runs in vector lanes
        slot, coin, gap, uniform = arrival(u64(start + j), n, draw)
        slots[j] = np.int64(slot)
        coins[j] = coin
        gaps[j] = gap
        uniforms[j] = uniform
