"""The numbers of `mhrun.random`, one chain and one step at a time.

Words are held in uint64 lanes with 32 bits of meaning: that is what a 32 x 32 -> 64 bit multiply
of a vector unit takes and gives, so the compiler needs no conversions (2.7 times faster here).
A key is the pair (low word, high word) as uint64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mhrun.native.compiler import Piece, piece
from mhrun.native.maths import cos_sin_64, log_64

u64 = np.uint64
LOW = u64(0xFFFFFFFF)
S32 = u64(32)
MUL_0, MUL_1 = u64(0xD2511F53), u64(0xCD9E8D57)
WEYL_0, WEYL_1 = u64(0x9E3779B9), u64(0xBB67AE85)
# Purposes, in the place that they have in the counter (see mhrun.random.Purpose); `use` is added at 1 << 20.
PROPOSAL, MINIBATCH, ACCEPT, EXCHANGE = u64(1 << 24), u64(2 << 24), u64(3 << 24), u64(4 << 24)
NOISE, GRADIENT = u64(5 << 24), u64(6 << 24)
USE = u64(1 << 20)
SMALL = 1024


def split_key(key: int) -> tuple[np.uint64, np.uint64]:
    """Return a 64-bit key as two words."""
    return u64(key & 0xFFFFFFFF), u64(key >> 32)


@piece
def philox(block: Any, step: Any, purpose: Any, chain: Any, key: Any) -> Any:
    """Philox4x32-10 of the counter (block, step, purpose, chain): four words."""
    k0, k1 = key
    c0, c1, c2, c3 = block, step & LOW, purpose | ((step >> S32) & u64(0xFFFFF)), chain
    for _ in range(10):
        p0 = (c0 & LOW) * MUL_0
        p1 = (c2 & LOW) * MUL_1
        c0, c1, c2, c3 = (p1 >> S32) ^ c1 ^ k0, p1, (p0 >> S32) ^ c3 ^ k1, p0
        # Carries beyond 32 bits gather in the upper half, which the products leave out.
        k0 = k0 + WEYL_0
        k1 = k1 + WEYL_1
    return c0 & LOW, c1 & LOW, c2 & LOW, c3 & LOW


@piece
def uniform(purpose: Any, step: Any, chain: Any, key: Any) -> Any:
    """A uniform in (0, 1) with 53 random bits."""
    a, b, _c, _d = philox(u64(0), step, purpose, chain, key)
    return (np.float64(((a >> u64(5)) << u64(26)) + (b >> u64(6))) + 0.5) * 2.0**-53


@piece
def normals(block: Any, purpose: Any, step: Any, chain: Any, key: Any) -> Any:
    """Four standard normals by Box-Muller."""
    a, b, c, d = philox(block, step, purpose, chain, key)
    r = math.sqrt(-2.0 * log_64((np.float64(a) + 0.5) * 2.0**-32))
    s = math.sqrt(-2.0 * log_64((np.float64(c) + 0.5) * 2.0**-32))
    x, y = cos_sin_64((np.float64(b) + 0.5) * 2.0**-32)
    z, w = cos_sin_64((np.float64(d) + 0.5) * 2.0**-32)
    return r * x, r * y, s * z, s * w


@piece
def fill_normals(out: Any, purpose: Any, step: Any, chain: Any, key: Any) -> None:
    """Fill out (D,) with standard normals."""
    whole = len(out) // 4
    for block in range(whole):  # without a branch, so that it runs in vector lanes
        x, y, z, w = normals(u64(block), purpose, step, chain, key)
        out[4 * block] = x
        out[4 * block + 1] = y
        out[4 * block + 2] = z
        out[4 * block + 3] = w
    if 4 * whole < len(out):
        rest = normals(u64(whole), purpose, step, chain, key)
        for d in range(4 * whole, len(out)):
            out[d] = rest[d - 4 * whole]


@piece
def scaled(low: Any, high: Any, n: Any) -> Any:
    """floor(n * (2^32 high + low) / 2^64) for n < 2^31."""
    return (high * n + ((low * n) >> S32)) >> S32


@piece
def independent(
    index: Any, m: Any, n: Any, sides: Any, step: Any, chain: Any, key: Any, purpose: Any, start: Any
) -> None:
    """Fill index[:m] with independent uniform indices below n; `index` has room for m + 1.

    `purpose` is `MINIBATCH` with its use; `start` is how many of the batch there are already.
    """
    half = (m + 1) // 2
    for j in range(half):
        a, b, c, d = philox(u64(start + j), step, purpose, chain, key)
        index[j] = scaled(a, b, n)
        index[half + j] = scaled(c, d, n)  # one place beyond m when m is odd


@piece
def scatter(half: Any, key: Any, side: Any) -> Any:
    """A keyed hash of `half` into [0, side)."""
    p = (half ^ key) * MUL_0
    return (((p ^ (p >> S32)) & LOW) * side) >> S32


@piece
def turn(left: Any, right: Any, a: Any, b: Any, key: Any, other: Any) -> Any:
    """Two rounds of the Feistel network on Z_a x Z_b."""
    # min(x, x - side) on unsigned numbers is x mod side for x < 2 * side, without a branch.
    left = left + scatter(right, key, a)
    left = min(left, left - a)
    right = right + scatter(left, other, b)
    right = min(right, right - b)
    return left, right


@piece
def feistel(position: Any, a: Any, b: Any, keys: Any) -> Any:
    """Permute `position` in [0, a*b), below 2^32, under eight round keys."""
    # A float64 quotient of integers below 2^32 has the right integer part, and vector units have it.
    left = u64(np.float64(position) / np.float64(b))
    right = position - left * b
    left, right = turn(left, right, a, b, keys[0], keys[1])
    left, right = turn(left, right, a, b, keys[2], keys[3])
    left, right = turn(left, right, a, b, keys[4], keys[5])
    left, right = turn(left, right, a, b, keys[6], keys[7])
    return left * b + right


@piece
def distinct(
    index: Any, m: Any, n: Any, sides: Any, step: Any, chain: Any, key: Any, purpose: Any, start: Any
) -> None:
    """Fill index[:m] with images of a keyed permutation of [0, n), n > SMALL: those from `start` on."""
    a, b = sides
    p, q = philox(u64(0), step, purpose, chain, key), philox(u64(1), step, purpose, chain, key)
    keys = (p[0], p[1], p[2], p[3], q[0], q[1], q[2], q[3])
    for j in range(m):
        index[j] = feistel(u64(start + j), a, b, keys)
    if a * b > n:
        for j in range(m):
            while index[j] >= n:  # rare: walk on to the next image inside
                index[j] = feistel(u64(index[j]), a, b, keys)


@piece
def ordered(
    index: Any, m: Any, n: Any, sides: Any, step: Any, chain: Any, key: Any, purpose: Any, start: Any
) -> None:
    """Fill index[:m] from an exactly uniform order of [0, n), n <= SMALL, from place `start` on."""
    half = (n + u64(1)) // u64(2)
    keys = np.empty(np.int64(2 * half), np.int64)
    for j in range(half):
        a, b, c, d = philox(u64(j), step, purpose, chain, key)
        keys[np.int64(j)] = np.int64((b << u64(31)) ^ a)
        keys[np.int64(half + j)] = np.int64((d << u64(31)) ^ c)
    order = np.argsort(keys[: np.int64(n)])
    for j in range(m):
        index[j] = order[start + j]


@piece
def only(
    index: Any, m: Any, n: Any, sides: Any, step: Any, chain: Any, key: Any, purpose: Any, start: Any
) -> None:
    """Fill index[:m] with 0: there is one datum."""
    index[:m] = 0


def filler(n: int, replacement: bool) -> Piece:
    """Return the piece that fills index[:m] with a minibatch: `independent`, `distinct` or `ordered`."""
    if n == 1:
        return only
    if replacement:
        return independent
    return ordered if n <= SMALL else distinct
