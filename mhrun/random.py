"""Random numbers that are functions of (key, purpose, step, chain), not of history.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is a block cipher on
a counter. Here the counter is (block, step, purpose, chain) and the key is the run's seed, so

- a chain's numbers depend neither on how many other chains there are, nor on the threads, nor on
  where a run was interrupted: resuming needs no generator state, only the step;
- adding a draw for one purpose shifts no other;
- the plain torch path and the fused native loop (`mhrun.native.philox`) draw the same words.

Batches without repeats come from a keyed permutation: a Feistel network on Z_a x Z_b with a*b >= n
(Black & Rogaway 2002), walked on in the few cases that land at or beyond n. Element j of a batch is
the image of j, so a batch costs O(m), can be grown by going on with j, and is a permutation at m = n.
Up to `SMALL` data the permutation is an argsort of random keys, exactly uniform over all orders.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable
from enum import IntEnum
from functools import lru_cache

import torch
from torch import Tensor

MUL_0, MUL_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85
LOW = 0xFFFFFFFF
FEISTEL_ROUNDS = 8
SMALL = 1024
MANY = 4096  # normals of a chain and a step from which on they are made one step at a time
_PREFETCH = 1 << 17  # numbers made at once: fewer, larger calls


USES = 16


class Purpose(IntEnum):
    """What a random number is for; each has streams of its own, one for each `use` below `USES`."""

    INIT = 0
    PROPOSAL = 1
    MINIBATCH = 2
    ACCEPT = 3
    EXCHANGE = 4
    NOISE = 5
    GRADIENT = 6  # of noise that a target adds to gradients


def derive_key(seed: int, name: str) -> int:
    """Return a 64-bit key for the stream `name` of a run with this seed."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little")


class Streams:
    """All random words of `chains` chains.

    Args:
        key: 64-bit key, from `derive_key`.
        chains: how many chains C.
        device: where the numbers are made.
        first_chain: the number of the first chain, when these are a part of a larger set.
        compiled: whether minibatch indices, and normals where there are many, come from the compiled
            generator: the same numbers (normals to rounding), ten times sooner, after a second or two of compiling.
            Needs a CPU and numba.
    """

    def __init__(
        self,
        key: int,
        chains: int,
        device: torch.device | str = "cpu",
        first_chain: int = 0,
        compiled: bool = False,
    ) -> None:
        self.key = key
        self.chains = chains
        self.first_chain = first_chain
        self.device = torch.device(device)
        self.compiled = compiled
        self._numbers = torch.arange(first_chain, first_chain + chains, device=self.device)

    @property
    def numbers(self) -> Tensor:
        """The number of each chain (C,), int64."""
        return self._numbers

    def of(self, name: str, rows: Tensor) -> Streams:
        """Return other streams, by `name`, of some of the chains (R,); a chain's do not depend on the others."""
        found = Streams(derive_key(self.key, name), len(rows), self.device, compiled=self.compiled)
        found._numbers = self._numbers[rows]
        return found

    def words(
        self,
        purpose: Purpose,
        first_step: int,
        steps: int,
        blocks: int,
        use: int = 0,
        first_block: int = 0,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return 32-bit words held in int64, (steps, C, blocks, 4), or those of some of the chains."""
        step = torch.arange(first_step, first_step + steps, device=self.device)[:, None, None]
        chain = (self._numbers if rows is None else self._numbers[rows])[:, None]
        block = torch.arange(first_block, first_block + blocks, device=self.device)
        high = ((step >> 32) & 0xFFFFF) | (use << 20) | (int(purpose) << 24)
        return torch.stack(torch.broadcast_tensors(*philox(block, step & LOW, high, chain, self.key)), -1)

    def compiled_indices(
        self,
        first_step: int,
        steps: int,
        n: int,
        m: int,
        replacement: bool,
        use: int = 0,
        start: int = 0,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return minibatches from the compiled generator, (steps, C, m)."""
        from mhrun.native.numbers import indices

        chains = self._numbers if rows is None else self._numbers[rows]
        out = indices(
            self.key, first_step, steps, chains.numpy(), n, m, rectangle(n), replacement, use, start
        )
        return torch.from_numpy(out)

    def earlier_indices(self, steps: Tensor, chains: Tensor, n: int, start: int, stop: int) -> Tensor:
        """Return the data start..stop of minibatches without repeats that some chains drew, each at a step of its own.

        steps and chains (R,), the latter by number; returns indices (R, stop - start): where a minibatch of `start`
        data ended, they go on.
        """
        blocks = torch.arange(-(-n // 2) if n <= SMALL else 2, device=self.device)
        high = ((steps >> 32) & 0xFFFFF) | (int(Purpose.MINIBATCH) << 24)
        counters = (blocks, (steps & LOW)[:, None], high[:, None], chains[:, None])
        words = torch.stack(torch.broadcast_tensors(*philox(*counters, self.key)), -1)[None]
        found = _order(words, n)[..., start:stop] if n <= SMALL else _permuted(words, n, stop - start, start)
        return found[0]

    def many_normals(
        self, purpose: Purpose, step: int, count: int, dtype: torch.dtype, use: int = 0
    ) -> Tensor | None:
        """Return normals (C, count) of one step from a generator that is made for many, or None if there is none.

        On a GPU it is the device's own: a function of key, purpose and step as all are, but a chain's numbers then
        depend on how many chains there are.
        """
        if self.device.type == "cuda":
            seed = derive_key(self.key, f"{int(purpose)}/{use}/{step}") >> 1
            generator = torch.Generator(self.device).manual_seed(seed)
            return torch.randn(self.chains, count, dtype=dtype, device=self.device, generator=generator)
        if not self.compiled:
            return None
        from mhrun.native.numbers import normals

        kind = "float32" if dtype == torch.float32 else "float64"
        out = normals(self.key, step, self._numbers.numpy(), count, int(purpose), use, kind)
        return torch.from_numpy(out)

    def at(self, step: int, ahead: int = 64) -> Draws:
        """Return the numbers of one step; those of so many steps are made at once where they are asked for in turn."""
        return Draws(self, step, ahead)


class Draws:
    """The random numbers of one step, for all chains; set `step` to move on.

    A number is drawn once: what a step draws for one purpose more than once needs another `use` each
    time, and drawing the same numbers again is an error, as they would not be independent.

    Those of several steps are made at once and kept. As they are functions of the step, this changes
    nothing but the speed.
    """

    def __init__(self, streams: Streams, step: int, ahead: int = 64) -> None:
        self.streams = streams
        self._ahead = ahead
        self._kept: dict[Hashable, tuple[int, Tensor]] = {}
        self._drawn: set[Hashable] = set()
        self.step = step

    @property
    def step(self) -> int:
        """The step whose numbers these are."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self._drawn.clear()

    @property
    def chains(self) -> int:
        """How many chains C."""
        return self.streams.chains

    @property
    def device(self) -> torch.device:
        """Where the numbers are."""
        return self.streams.device

    def normal(
        self, purpose: Purpose, count: int, use: int = 0, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """Return standard normals (C, count): Box-Muller on 32-bit words, cut at 6.66 sigma."""
        blocks = -(-count // 4)
        if count >= MANY:
            self._once((purpose, use))
            if (found := self.streams.many_normals(purpose, self.step, count, dtype, use)) is not None:
                return found
            return _normals(self.streams.words(purpose, self.step, 1, blocks, use))[0, :, :count].to(dtype)

        def make(first: int, steps: int) -> Tensor:
            return _normals(self.streams.words(purpose, first, steps, blocks, use))[..., :count]

        self._once((purpose, use))
        return self._take((purpose, use, count), 4 * blocks, make).to(dtype)

    def uniform(self, purpose: Purpose, use: int = 0) -> Tensor:
        """Return uniforms in (0, 1), (C,), float64, with 53 random bits."""
        self._once((purpose, use))
        return self._take(
            (purpose, use),
            4,
            lambda first, steps: _uniforms(self.streams.words(purpose, first, steps, 1, use)),
        )

    def index(
        self, n: int, m: int, *, replacement: bool, use: int = 0, start: int = 0, rows: Tensor | None = None
    ) -> Tensor:
        """Return the indices of a minibatch (C, m), int64, uniform over the n data and fresh in each step.

        With replacement they are independent, from 64-bit words (bias below n / 2^64). Without, they
        are images of a keyed permutation of the n data: those of start, start + 1, ... A batch that grows
        goes on with `start` at its size, and with `rows` for the chains that still want data.
        """

        def make(first: int, steps: int) -> Tensor:
            if self.streams.compiled:
                return self.streams.compiled_indices(first, steps, n, m, replacement, use, start, rows)
            blocks = -(-m // 2) if replacement else -(-n // 2) if n <= SMALL else 2
            base = start if replacement else 0
            words = self.streams.words(Purpose.MINIBATCH, first, steps, blocks, use, base, rows)
            if replacement:
                return _independent(words, n, m)
            return _order(words, n)[..., start : start + m] if n <= SMALL else _permuted(words, n, m, start)

        self._once((Purpose.MINIBATCH, use, start))
        if rows is not None:
            return make(self.step, 1)[0]
        return self._take((n, m, replacement, use, start), n if n <= SMALL else m, make)

    def _once(self, what: Hashable) -> None:
        if isinstance(what, tuple) and isinstance(what[1], int) and not 0 <= what[1] < USES:
            raise RuntimeError(f"use = {what[1]} is none: there are {USES} for each purpose.")
        if what in self._drawn:
            raise RuntimeError(f"{what} is drawn twice in one step: give each draw a `use` of its own.")
        self._drawn.add(what)

    def _take(self, what: Hashable, size: int, make: Callable[[int, int], Tensor]) -> Tensor:
        """Return this step's part of ``make(first step, K) -> (K, C, ...)``, of `size` numbers a chain."""
        first, kept = self._kept.get(what, (0, None))
        if kept is None or not first <= self.step < first + kept.shape[0]:
            steps = max(1, min(self._ahead, _PREFETCH // (self.chains * size)))
            first, kept = self.step, make(self.step, steps)
            self._kept[what] = (first, kept)
        return kept[self.step - first]


def philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, key: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 of counters held in int64 tensors (broadcast together), each below 2^32."""
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


@lru_cache(maxsize=64)
def rectangle(n: int) -> tuple[int, int]:
    """Return sides (a, b) with a*b >= n as near to n as can be, and a from about sqrt(n)/2 to sqrt(n)."""
    root = math.isqrt(n - 1) + 1
    sides = [(a, -(-n // a)) for a in range(max(2, root // 2), max(2, root) + 1)]
    return min(sides, key=lambda ab: (ab[0] * ab[1], -ab[0]))


def _uniforms(words: Tensor) -> Tensor:
    high, low = words[..., 0, 0] >> 5, words[..., 0, 1] >> 6
    return (((high << 26) + low).double() + 0.5) * 2.0**-53


def _normals(words: Tensor) -> Tensor:
    unit = (words.double() + 0.5) * 2.0**-32
    radius, angle = (-2.0 * unit[..., 0::2].log()).sqrt_(), 2.0 * math.pi * unit[..., 1::2]
    pairs = torch.stack((radius * angle.cos(), radius * angle.sin()), dim=-1)  # (K, C, blocks, 2, 2)
    return pairs.flatten(start_dim=2)


def _independent(words: Tensor, n: int, m: int) -> Tensor:
    def scaled(low: Tensor, high: Tensor) -> Tensor:  # floor(n * (2^32 high + low) / 2^64)
        return (high * n + ((low * n) >> 32)) >> 32

    first, second = scaled(words[..., 0], words[..., 1]), scaled(words[..., 2], words[..., 3])
    return torch.cat((first, second[..., : m - first.shape[-1]]), dim=-1)


def _order(words: Tensor, n: int) -> Tensor:
    # 63 bits, as int64 sorts with its sign; a tie has probability n^2 / 2^64.
    keys = torch.cat(((words[..., 1] << 31) ^ words[..., 0], (words[..., 3] << 31) ^ words[..., 2]), dim=-1)
    return keys[..., :n].argsort(dim=-1)


def _permuted(words: Tensor, n: int, m: int, start: int) -> Tensor:
    a, b = rectangle(n)
    keys = words.flatten(start_dim=2)  # (K, C, 8)
    out = _feistel(torch.arange(start, start + m, device=words.device), keys[:, :, None], a, b)
    while a * b > n:
        outside = (out >= n).nonzero(as_tuple=True)
        if not len(outside[0]):
            break
        out[outside] = _feistel(out[outside], keys[outside[:2]], a, b)
    return out


def _feistel(position: Tensor, keys: Tensor, a: int, b: int) -> Tensor:
    """Permute `position` in [0, a*b) under `keys` (..., FEISTEL_ROUNDS)."""

    def scatter(half: Tensor, key: Tensor, side: int) -> Tensor:  # a keyed hash into [0, side)
        product = (half ^ key) * MUL_0
        return (((product ^ ((product >> 32) & LOW)) & LOW) * side) >> 32

    def within(x: Tensor, side: int) -> Tensor:  # x mod side for x < 2 * side
        return torch.where(x >= side, x - side, x)

    left, right = position // b, position % b
    for r in range(0, FEISTEL_ROUNDS, 2):
        left = within(left + scatter(right, keys[..., r], a), a)
        right = within(right + scatter(left, keys[..., r + 1], b), b)
    return left * b + right
