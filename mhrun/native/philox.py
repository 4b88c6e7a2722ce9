"""The random numbers of `mhrun.random`, for one chain and one step at a time.

Words of 32 bits are stored as uint64, the type of the 32 x 32 -> 64 bit multiplication of vector units, so the compiler
needs no conversions (2.7 times faster here).
A key is the pair (low word, high word) as uint64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mhrun.native.compiler import Piece, piece, routine
from mhrun.native.maths import cos_sin_64, log_64

u64 = np.uint64
LOW = u64(0xFFFFFFFF)
S32 = u64(32)
MUL_0, MUL_1 = u64(0xD2511F53), u64(0xCD9E8D57)
WEYL_0, WEYL_1 = u64(0x9E3779B9), u64(0xBB67AE85)
# Purposes, at their position in the counter (see mhrun.random.Purpose); `use` is added at 1 << 20.
PROPOSAL, MINIBATCH, ACCEPT, EXCHANGE = u64(1 << 24), u64(2 << 24), u64(3 << 24), u64(4 << 24)
NOISE, GRADIENT, ARRIVALS = u64(5 << 24), u64(6 << 24), u64(7 << 24)
USE = u64(1 << 20)
SHUFFLE = u64(1 << 31)  # blocks of a minibatch from here on put the second half of the data in order
TILE = 256  # candidates drawn at once
BLOCKS = 64  # of four words, whose normals are made at once
BEGINNING = 1024  # data of a growing minibatch that are recorded in a table
FEW = 12  # blocks below which words and normals are made in one loop


def split_key(key: int) -> tuple[np.uint64, np.uint64]:
    """Return a 64-bit key as two words."""
    return u64(key & 0xFFFFFFFF), u64(key >> 32)


@piece
def philox(block: Any, purpose: Any, draw: Any) -> Any:
    """Philox4x32-10 of the counter (block, step, purpose, chain): four words."""
    k0, k1 = draw.key
    step = draw.step
    c0, c1, c2, c3 = block, step & LOW, purpose | ((step >> S32) & u64(0xFFFFF)), draw.chain
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
    """A uniform in (0, 1) with 53 random bits."""
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
def fill_normals(out: Any, purpose: Any, draw: Any) -> None:
    """Fill out (D,) with standard normals."""
    whole = len(out) // 4
    if out.itemsize == 8 and whole >= FEW:  # float64, which can hold words
        # Words first, then normals in their place: the compiler gives one loop of both half of the vector width.
        for first in range(0, whole, BLOCKS):
            tile = out[4 * first : 4 * min(first + BLOCKS, whole)]
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
        for block in range(whole):  # without a branch, so that it is vectorised
            x, y, z, w = normals(u64(block), purpose, draw)
            out[4 * block] = x
            out[4 * block + 1] = y
            out[4 * block + 2] = z
            out[4 * block + 3] = w
    if 4 * whole < len(out):
        rest = normals(u64(whole), purpose, draw)
        for d in range(4 * whole, len(out)):
            out[d] = rest[d - 4 * whole]


@piece
def fill_uniforms(out: Any, purpose: Any, draw: Any) -> None:
    """Fill out (D,), float64, with uniforms in (0, 1) of 32 random bits each."""
    whole = len(out) // 4
    for block in range(whole):
        x, y, z, w = philox(u64(block), purpose, draw)
        out[4 * block] = (np.float64(x) + 0.5) * 2.0**-32
        out[4 * block + 1] = (np.float64(y) + 0.5) * 2.0**-32
        out[4 * block + 2] = (np.float64(z) + 0.5) * 2.0**-32
        out[4 * block + 3] = (np.float64(w) + 0.5) * 2.0**-32
    if 4 * whole < len(out):
        rest = philox(u64(whole), purpose, draw)
        for d in range(4 * whole, len(out)):
            out[d] = (np.float64(rest[d - 4 * whole]) + 0.5) * 2.0**-32


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


class Workspace(NamedTuple):
    """The workspace of `distinct`; each thread has its own, see `workspace`.

    The drawn data are recorded in a hash table while they are at most `few`, otherwise in one bit per datum.
    """

    few: int
    at: npt.NDArray[
        np.int64
    ]  # (4,) of the bits, drawn data and position in the stream; of the table, offset and position
    candidates: npt.NDArray[np.int64]  # of the stream of uniform indices
    table: npt.NDArray[np.uint32]  # the last position in the stream with this hash
    links: npt.NDArray[np.uint32]  # the previous position with the same hash
    repeats: npt.NDArray[np.int32]  # positions of values that were drawn before
    seen: npt.NDArray[np.uint64]  # bits
    trail: npt.NDArray[np.int32]  # the first drawn data, whose bits are cleared one by one
    rest: npt.NDArray[np.int32]  # the data that are not in the first half of a permutation


def workspace(n: int, largest: int, *, replacement: bool = False, grows: bool = False) -> Workspace:
    """Return a workspace for minibatches of up to `largest` of n data.

    Takes about 150 bytes per datum of a small minibatch. A large one takes n / 8 bytes, and 2 n more if more than half
    of the data are drawn. One that `grows` call by call begins as a small one. Untouched pages take no memory.
    """
    # A table is faster than bits while it fits into the cache; a smaller table would lose more by collisions.
    few = 0 if replacement else min(largest, n // 16, BEGINNING if grows else max(16384, n // 256))
    if few < largest and not grows:
        few = 0
    bits = few < largest and not replacement
    positions = 2 * few + 64 if few else 0  # insufficient for less than one minibatch in 10^57
    words = n // 64 + 1 if bits else 0
    return Workspace(
        few,
        np.zeros(4, np.int64),
        np.empty(max(positions, TILE) + 2, np.int64),
        np.zeros(1 << (16 * few - 1).bit_length() if few else 0, np.uint32),
        np.empty(positions, np.uint32),
        np.empty(positions, np.int32),
        np.zeros(words, np.uint64),
        np.empty(min(largest, words, n // 2), np.int32),
        np.empty(n - n // 2 if bits and largest > n // 2 else 0, np.int32),
    )


class Workspaces:
    """The workspaces of a compiled loop, one for each thread: for `over_chains`."""

    def __init__(self, n: int, largest: int, *, replacement: bool = False, grows: bool = False) -> None:
        self._make = lambda: workspace(n, largest, replacement=replacement, grows=grows)
        self._made: list[Workspace] = []

    def __call__(self, part: int) -> Workspace:
        """Return the workspace of one part of the chains."""
        while len(self._made) <= part:
            self._made.append(self._make())
        return self._made[part]


@piece
def independent(index: Any, m: Any, n: Any, draw: Any, purpose: Any, start: Any, work: Any) -> None:
    """Fill index[:m] with independent uniform indices below n; `index` has room for m + 1.

    `purpose` is `MINIBATCH` with its use; `start` is how many of the batch there are already.
    """
    half = (m + 1) // 2
    for j in range(half):
        a, b, c, d = philox(u64(start + j), purpose, draw)
        index[j] = scaled(a, b, n)
        index[half + j] = scaled(c, d, n)  # one place beyond m when m is odd


@piece
def _candidates(out: Any, into: Any, position: Any, stop: Any, n: Any, draw: Any, purpose: Any) -> None:
    """Write elements position..stop of the stream of uniform indices to out[into:].

    Elements 2b and 2b + 1 are the halves of block b; whole blocks are written, from `into` less 1 on where `position`
    is odd.
    """
    first = position >> 1
    begin = into - (position & 1)
    for b in range(((stop + 1) >> 1) - first):
        x, y, z, w = philox(u64(first + b), purpose, draw)
        # Unsigned: an index that may be negative prevents vectorisation.
        out[u64(begin + 2 * b)] = scaled(x, y, n)
        out[u64(begin + 2 * b + 1)] = scaled(z, w, n)


@routine
def _by_table(index: Any, m: Any, n: Any, draw: Any, purpose: Any, start: Any, work: Any) -> None:
    """Fill index[:m] with the next m distinct values of the stream, recorded in a hash table with chaining.

    Positions keep increasing from minibatch to minibatch, so the table need not be cleared. Indices are random and
    serve as their own hash.
    """
    at, stream, table, links, repeats = work.at, work.candidates, work.table, work.links, work.repeats
    if start == 0:
        at[2] += len(links)
        at[3] = 0
        if at[2] + len(links) >= np.int64(LOW):
            for h in range(len(table)):
                table[h] = np.uint32(0)
            at[2] = 0
    base, mask = np.uint32(at[2] + 1), u64(len(table) - 1)
    first = at[3]
    made, repeated = first, 0
    while made - first - repeated < m:
        stop = first + m + repeated
        _candidates(stream, made, made, stop, n, draw, purpose)
        for j in range(u64(made), u64(stop)):
            value = stream[j]
            place = u64(value) & mask
            before = table[place]
            table[place] = base + np.uint32(j)
            links[j] = before
            while before >= base:  # of this minibatch, with the same hash
                if stream[u64(before - base)] == value:
                    repeats[u64(repeated)] = np.int32(j)
                    repeated += 1
                    break
                before = links[u64(before - base)]
        made = stop
    at[3] = made
    begin = first
    for r in range(repeated + 1):  # from one repeated value to the next
        end = np.int64(repeats[r]) if r < repeated else np.int64(made)
        for i in range(end - begin):
            index[u64(begin - first - r + i)] = stream[u64(begin + i)]
        begin = end + 1


@piece
def _forget(work: Any) -> None:
    """Clear the bits of the last minibatch."""
    drawn = work.at[0]
    if drawn <= len(work.trail):
        for j in range(drawn):
            work.seen[u64(work.trail[j]) >> u64(6)] = u64(0)
    else:
        for w in range(len(work.seen)):
            work.seen[w] = u64(0)
    work.at[0] = work.at[1] = 0


@routine
def _leave_table(work: Any) -> None:
    """Record the minibatch in bits, as it outgrows the table."""
    _forget(work)
    position, drawn = work.at[3], 0
    for j in range(position):
        value = u64(work.candidates[j])
        word, bit = value >> u64(6), u64(1) << (value & u64(63))
        if not work.seen[word] & bit:
            work.seen[word] |= bit
            if drawn < len(work.trail):
                work.trail[drawn] = np.int32(value)
            drawn += 1
    work.at[0], work.at[1] = drawn, position


@piece
def _list_rest(work: Any, n: Any) -> None:
    """List the data not yet drawn, in ascending order."""
    found = 0
    for i in range(n):
        if not (work.seen[i >> 6] >> u64(i & 63)) & u64(1):
            work.rest[found] = i
            found += 1


@piece
def _shuffled(index: Any, m: Any, known: Any, n: Any, draw: Any, purpose: Any, work: Any) -> None:
    """Fill index[:m] with places known, known + 1, ... of a Fisher-Yates shuffle of the rest."""
    rest, size = work.rest, len(work.rest)
    for j in range(m):
        place = known + j
        a, b, c, d = philox(SHUFFLE + u64(place >> 1), purpose, draw)
        left = u64(size - place)
        other = place + np.int64(scaled(c, d, left) if place & 1 else scaled(a, b, left))
        index[j] = rest[other]
        rest[other] = rest[place]
        rest[place] = index[j]


@routine
def _by_bits(index: Any, m: Any, n: Any, draw: Any, purpose: Any, start: Any, work: Any) -> None:
    """Fill index[:m] with the next m data of a permutation of all data, recorded in one bit per datum."""
    if start == 0:
        _forget(work)
    drawn, position = work.at[0], work.at[1]
    half = np.int64(n) // 2
    seen, candidates = work.seen, work.candidates
    got: Any = 0
    most = min(np.int64(m), half - drawn)
    while got < most:
        count = min(most - got, TILE)
        _candidates(candidates, 1, position, position + count, n, draw, purpose)
        position += count
        for j in range(count):
            value = u64(candidates[u64(j + 1)])
            word, bit = value >> u64(6), value & u64(63)
            before = seen[word]
            seen[word] = before | (u64(1) << bit)
            index[u64(got)] = np.int64(value)  # overwritten by the next value if it was drawn before
            got += 1 - np.int64((before >> bit) & u64(1))
    for j in range(min(got, len(work.trail) - drawn)):
        work.trail[drawn + j] = index[j]
    drawn += got
    if got < m:
        if drawn == half:
            _list_rest(work, np.int64(n))
        _shuffled(index[got:], m - got, drawn - half, n, draw, purpose, work)
        drawn += m - got
    work.at[0], work.at[1] = drawn, position


@piece
def distinct(index: Any, m: Any, n: Any, draw: Any, purpose: Any, start: Any, work: Any) -> None:
    """Fill index[:m] with the next m data of a uniformly random permutation of all n.

    ``start = 0`` begins a permutation; otherwise the preceding calls have drawn `start` data of it, and m more follow.
    The first n // 2 are the distinct values of a stream of independent uniform indices, in
    order of first occurrence; the others, in ascending order, are shuffled (Fisher & Yates) with a separate stream.
    Each draw is uniform over the remaining data, up to the 2^-64 of a scaled word. The first stream alone would need n
    log n words.
    """
    if work.few > 0:  # which has room for all of the minibatch
        _by_table(index, m, n, draw, purpose, start, work)
    else:
        _by_bits(index, m, n, draw, purpose, start, work)


@piece
def growing(index: Any, m: Any, n: Any, draw: Any, purpose: Any, start: Any, work: Any) -> None:
    """Do what `distinct` does in a workspace that `grows`: in its table first, then in its bits."""
    if start + m <= work.few:
        _by_table(index, m, n, draw, purpose, start, work)
    else:
        if 0 < start <= work.few:
            _leave_table(work)
        _by_bits(index, m, n, draw, purpose, start, work)


@piece
def only(index: Any, m: Any, n: Any, draw: Any, purpose: Any, start: Any, work: Any) -> None:
    """Fill index[:m] with 0: there is one datum."""
    index[:m] = 0


def filler(n: int, *, replacement: bool = False, grows: bool = False) -> Piece:
    """Return the piece that fills index[:m] with a minibatch: `independent`, `distinct` or `growing`."""
    if n == 1:
        return only
    if grows:
        return growing
    return independent if replacement else distinct
