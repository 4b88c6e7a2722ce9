"""The indices of minibatches, drawn in compiled loops: with replacement, or as prefixes of a permutation.

They are those of `mhrun.random`, from the words of `mhrun.native.philox`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mhrun.errors import UserError
from mhrun.native.compiler import Piece, piece, routine
from mhrun.native.philox import LOW, S32, philox, scaled, u64

SHUFFLE = u64(1 << 31)  # blocks of a minibatch from here on put the second half of the data in order
TILE = 256  # candidates drawn at once
SHORT = 2048  # data of the largest minibatch whose table has entries of 16 bits
BEGINNING = 1024  # data of a growing minibatch that are recorded in a table


class Workspace(NamedTuple):
    """The workspace of `distinct`; each thread has its own, see `workspace`.

    The drawn data are recorded in a hash table while they are at most `few`, otherwise in one bit per datum.
    """

    few: int
    # (4,) of the bits, drawn data and position in the stream; of the table, offset and position
    at: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.uint64]  # elements of the stream of uniform indices, two in a word
    stream: npt.NDArray[np.uint32]  # the same memory, one by one
    table: npt.NDArray[np.unsignedinteger]  # the last position with this hash, and whether it has a link
    links: npt.NDArray[np.unsignedinteger]  # the entry of the table that a position replaced
    repeats: npt.NDArray[np.int32]  # positions of values that were drawn before
    seen: npt.NDArray[np.uint64]  # bits
    trail: npt.NDArray[np.int32]  # the first drawn data, whose bits are cleared one by one
    rest: npt.NDArray[np.int32]  # the data that are not in the first half of a permutation


def workspace(n: int, largest: int, *, replacement: bool = False, grows: bool = False) -> Workspace:
    """Return a workspace for minibatches of up to `largest` of n data.

    Takes 100 to 300 bytes per datum of a small minibatch. A large one takes n / 8 bytes, and 2 n more if more than half
    of the data are drawn. One that `grows` call by call begins as a small one. Untouched pages take no memory.

    Raises:
        UserError: n is 2^32 or more, which the table and the bits have no room for.
    """
    # A table is faster than bits while it fits into the cache; a smaller table would lose more by collisions.
    few = 0 if replacement else min(largest, n // 16, BEGINNING if grows else max(16384, n // 256))
    if few < largest and not grows:
        few = 0
    if n >= 1 << 32 and not replacement:
        raise UserError(f"Minibatches of {n:,} data are drawn with replacement only: set replacement=true.")
    bits = few < largest and not replacement
    positions = 2 * few + 64 if few else 0  # insufficient for less than one minibatch in 10^57
    # Short entries leave room for four times as many, so that fewer data share one; but positions run out, and the
    # table is cleared, every 2^15 / m minibatches, which large ones cannot afford.
    short = few <= SHORT
    entries = (16 if grows or not short else 64) * few
    words = n // 64 + 1 if bits else 0
    pairs = np.empty(max(positions, TILE) // 2 + 2, np.uint64)
    return Workspace(
        few,
        np.zeros(4, np.int64),
        pairs,
        pairs.view(np.uint32),
        np.zeros(1 << (entries - 1).bit_length() if few else 0, np.uint16 if short else np.uint32),
        np.empty(positions, np.uint16 if short else np.uint32),
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
def _write_pairs(pairs: Any, first: Any, last: Any, begin: Any, n: Any, draw: Any, purpose: Any) -> None:
    """Write blocks first..last of the stream of uniform indices to pairs[begin:].

    Block b has elements 2b and 2b + 1, in the lower and the upper half of a word: what a vector of blocks makes needs
    no interleaving.
    """
    for b in range(u64(last - first)):
        x, y, z, w = philox(u64(first) + b, purpose, draw)
        pairs[u64(begin) + b] = scaled(x, y, n) | (scaled(z, w, n) << S32)


@routine
def _by_table(index: Any, m: Any, n: Any, draw: Any, purpose: Any, start: Any, work: Any) -> None:
    """Fill index[:m] with the next m distinct values of the stream, recorded in a hash table with chaining.

    Indices are random and serve as their own hash. An entry of the table is twice the position of a value, plus one if
    the entry before it, of another value with the same hash, is kept in `links`: few are, so that most values cost one
    look-up. Positions keep increasing from minibatch to minibatch, so that the table is seldom cleared.
    """
    at, stream, table, links, repeats = work.at, work.stream, work.table, work.links, work.repeats
    if start == 0:
        at[2] += 2 * at[3]
        at[3] = 0
        if at[2] + 2 * len(links) + 1 > (np.int64(0xFFFF) if table.itemsize == 2 else np.int64(LOW)):
            for h in range(len(table)):
                table[h] = 0
            at[2] = 0
    base, mask = np.uint32(at[2] + 2), np.uint32(len(table) - 1)
    first = at[3]
    n_drawn, repeated = first, 0
    while n_drawn - first - repeated < m:
        stop = first + m + repeated
        _write_pairs(work.pairs, n_drawn >> 1, (stop + 1) >> 1, n_drawn >> 1, n, draw, purpose)
        for j in range(u64(n_drawn), u64(stop)):
            value = stream[j]
            place = u64(value & mask)
            before = np.uint32(table[place])
            entry = base + np.uint32(2 * j)
            table[place] = entry
            if before >= base:  # of this minibatch, with the same hash
                links[j] = before
                table[place] = entry + np.uint32(1)
                linked = np.uint32(1)
                while linked:
                    earlier = u64((before - base) >> np.uint32(1))
                    if stream[earlier] == value:
                        repeats[u64(repeated)] = np.int32(j)
                        repeated += 1
                        break
                    linked = (before - base) & np.uint32(1)
                    before = np.uint32(links[earlier])  # unused if there is no link
        n_drawn = stop
    at[3] = n_drawn
    begin = first
    for r in range(repeated + 1):  # from one repeated value to the next
        end = np.int64(repeats[r]) if r < repeated else np.int64(n_drawn)
        for i in range(end - begin):
            index[u64(begin - first - r + i)] = np.int64(stream[u64(begin + i)])
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
        value = u64(work.stream[j])
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
    count = 0
    for i in range(n):
        if not (work.seen[i >> 6] >> u64(i & 63)) & u64(1):
            work.rest[count] = i
            count += 1


@piece
def _shuffled(index: Any, m: Any, first: Any, n: Any, draw: Any, purpose: Any, work: Any) -> None:
    """Fill index[:m] with places first, first + 1, ... of a Fisher-Yates shuffle of the rest."""
    rest, size = work.rest, len(work.rest)
    for j in range(m):
        place = first + j
        a, b, c, d = philox(SHUFFLE + u64(place >> 1), purpose, draw)
        n_left = u64(size - place)
        swapped = place + np.int64(scaled(c, d, n_left) if place & 1 else scaled(a, b, n_left))
        index[j] = rest[swapped]
        rest[swapped] = rest[place]
        rest[place] = index[j]


@routine
def _by_bits(index: Any, m: Any, n: Any, draw: Any, purpose: Any, start: Any, work: Any) -> None:
    """Fill index[:m] with the next m data of a permutation of all data, recorded in one bit per datum."""
    if start == 0:
        _forget(work)
    drawn, position = work.at[0], work.at[1]
    half = np.int64(n) // 2
    seen, stream = work.seen, work.stream
    n_new: Any = 0
    most = min(np.int64(m), half - drawn)
    while n_new < most:
        count = min(most - n_new, TILE)
        odd = position & 1
        _write_pairs(work.pairs, position >> 1, (position + count + 1) >> 1, 0, n, draw, purpose)
        position += count
        for j in range(count):
            value = u64(stream[u64(odd + j)])
            word, bit = value >> u64(6), value & u64(63)
            before = seen[word]
            seen[word] = before | (u64(1) << bit)
            index[u64(n_new)] = np.int64(value)  # overwritten by the next value if it was drawn before
            n_new += 1 - np.int64((before >> bit) & u64(1))
    for j in range(min(n_new, len(work.trail) - drawn)):
        work.trail[drawn + j] = index[j]
    drawn += n_new
    if n_new < m:
        if drawn == half:
            _list_rest(work, np.int64(n))
        _shuffled(index[n_new:], m - n_new, drawn - half, n, draw, purpose, work)
        drawn += m - n_new
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
