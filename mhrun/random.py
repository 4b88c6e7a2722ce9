"""Random numbers that are functions of (key, purpose, step, chain), not of history.

Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") is a block cipher on
a counter. Here the counter is (block, step, purpose, chain) and the key is the run's seed, so

- a chain's numbers do not depend on the number of other chains, on the threads, or on interruptions: resuming
  a run needs the step number and no generator state;
- an additional draw for one purpose does not shift the draws of any other;
- the torch path and the compiled loop (`mhrun.native.philox`) draw the same words.

There is one exception: `MANY` or more normals per chain and step on a GPU, see `Streams.many_normals`.

A minibatch without replacement is a prefix of a random permutation of the n data:

- its first n // 2 elements are the distinct values of a stream of independent uniform indices, in order of first
  occurrence;
- its other elements are the remaining indices in ascending order, shuffled by Fisher-Yates with a separate stream.
  Continuing the first stream would take n log n words.

Each element is therefore uniform over the remaining data for every n (up to the 2^-64 of a scaled 64-bit word).
A batch costs O(m), can be extended, and is a permutation at m = n.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mhrun.philox import (
    LOW,
    distinct_of,
    enough,
    independent_of,
    normals_of,
    philox,
    scaled_of,
    stream_of,
    uniforms_of,
    unit_of,
)

MANY = 4096  # normals per chain and step from which on steps are not prefetched
_PREFETCH = 1 << 17  # numbers generated per call when steps are prefetched
_HELD = 1 << 27  # most permutation indices kept in memory
_SORTED = 1 << 22  # most indices drawn at once in torch, at about 150 bytes each


USES = 16
_TRANSFORM, _RELABEL = 14, 13  # uses of Purpose.MINIBATCH: augmentation, and permuted labels


class Purpose(IntEnum):
    """The purpose of a random number. Each purpose has a separate stream for each `use` below `USES`."""

    INIT = 0
    PROPOSAL = 1
    MINIBATCH = 2
    ACCEPT = 3
    EXCHANGE = 4
    NOISE = 5
    GRADIENT = 6  # noise that a target adds to gradients
    ARRIVALS = 7  # of Poisson processes over the data


def derive_key(seed: int, name: str) -> int:
    """Return a 64-bit key for the stream `name` of a run with this seed."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little")


class Streams:
    """The random words of `chains` chains.

    Args:
        key: 64-bit key, from `derive_key`.
        chains: number of chains C.
        device: device on which the numbers are generated.
        first_chain: number of the first chain, if these are part of a larger set.
        compiled: use the compiled generator for minibatch indices and for large sets of normals. It gives the same
            numbers (normals up to rounding) ten times faster, after one or two seconds of compilation. Needs a CPU
            and numba.
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
        self._generator: torch.Generator | None = None

    @property
    def numbers(self) -> Tensor:
        """The number of each chain (C,), int64."""
        return self._numbers

    def of(self, name: str, rows: Tensor) -> Streams:
        """Return the streams called `name` of chains `rows` (R,); a chain's numbers do not depend on the others."""
        streams = Streams(
            derive_key(self.key, name), len(rows), self.device, self.first_chain, compiled=self.compiled
        )
        streams._numbers = self._numbers[rows]
        return streams

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
        """Return 32-bit words stored as int64, (steps, C, blocks, 4); with `rows`, of those chains only."""
        step = torch.arange(first_step, first_step + steps, device=self.device)[:, None, None]
        chain = (self._numbers if rows is None else self._numbers[rows])[:, None]
        block = torch.arange(first_block, first_block + blocks, device=self.device)
        high = ((step >> 32) & 0xFFFFF) | (use << 20) | (int(purpose) << 24)
        return torch.stack(torch.broadcast_tensors(*philox(block, step & LOW, high, chain, self.key)), -1)

    def independent(
        self,
        first_step: int,
        steps: int,
        n: int,
        m: int,
        use: int = 0,
        start: int = 0,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Return minibatches with replacement, (steps, C, m); with `rows`, of those chains only."""
        chains = self._numbers if rows is None else self._numbers[rows]
        if self.compiled:
            from mhrun.native.numbers import independent_indices

            return torch.from_numpy(
                independent_indices(self.key, first_step, steps, chains.numpy(), n, m, use, start)
            )
        words = self.words(Purpose.MINIBATCH, first_step, steps, -(-m // 2), use, start, rows)
        return independent_of(words, n, m)

    def permuted(
        self,
        steps: Tensor,
        chains: Tensor,
        n: int,
        start: int,
        stop: int,
        use: int = 0,
        dtype: torch.dtype = torch.int64,
    ) -> Tensor:
        """Return elements start..stop of minibatches without replacement: indices (R, stop - start).

        Row r belongs to step ``steps[r]`` and to the chain with number ``chains[r]``. The indices extend a minibatch
        of `start` data to one of `stop`. The cost is that of all first `stop` elements.
        """
        if n == 1:
            return torch.zeros(len(steps), stop - start, dtype=dtype, device=self.device)
        if stop == start:
            return torch.zeros(len(steps), 0, dtype=dtype, device=self.device)
        large = len(steps) * stop > _SORTED and (self.device.type == "cpu" or stop > _SORTED)
        if self.compiled or stop > n // 2 or large:
            from mhrun.native.numbers import permutations

            index_dtype = np.int32 if dtype == torch.int32 else np.int64
            places = steps.cpu().numpy(), chains.cpu().numpy()
            drawn = permutations(self.key, *places, n, start, stop, use, index_dtype)
            return torch.from_numpy(drawn).to(self.device)
        part = max(1, _SORTED // stop)
        parts = zip(steps.split(part), chains.split(part), strict=True)
        return torch.cat([self._distinct(*rows, n, stop, use)[:, start:].to(dtype) for rows in parts])

    def _distinct(self, steps: Tensor, chains: Tensor, n: int, m: int, use: int) -> Tensor:
        """Return the first m <= n // 2 distinct values of the streams of some chains and steps, (R, m)."""
        count = enough(n, m)
        high = ((steps >> 32) & 0xFFFFF) | (use << 20) | (int(Purpose.MINIBATCH) << 24)
        while True:
            blocks = torch.arange(-(-count // 2), device=self.device)
            counters = (blocks, (steps & LOW)[:, None], high[:, None], chains[:, None])
            words = torch.stack(torch.broadcast_tensors(*philox(*counters, self.key)), -1)
            distinct, short = distinct_of(stream_of(words, n), m)
            if self.device.type != "cpu":  # checked on the device, without synchronisation
                if self.device.type == "cuda":
                    torch._assert_async(~short)
                return distinct
            if not short:
                return distinct
            count *= 2

    def marks(
        self, first_step: int, steps: int, n: int, start: int, count: int, rows: Tensor | None = None
    ) -> Tensor:
        """Return slot, coin, gap and uniform of arrivals start, start + 1, ..., (steps, C, 4, count); see `Marks`."""
        if self.compiled:
            from mhrun.native.numbers import arrival_marks

            chains = (self._numbers if rows is None else self._numbers[rows]).numpy()
            return torch.from_numpy(arrival_marks(self.key, first_step, steps, chains, n, start, count))
        words = self.words(Purpose.ARRIVALS, first_step, steps, 2 * count, 0, 2 * start, rows)
        first_words, second_words = words[..., 0::2, :], words[..., 1::2, :]
        slot = scaled_of(first_words[..., 0], first_words[..., 1], n).double()
        gap = -unit_of(second_words[..., 0], second_words[..., 1]).log()
        coin, uniform = (
            unit_of(first_words[..., 2], first_words[..., 3]),
            unit_of(second_words[..., 2], second_words[..., 3]),
        )
        return torch.stack((slot, coin, gap, uniform), dim=-2)

    def many_normals(
        self, purpose: Purpose, step: int, count: int, dtype: torch.dtype, use: int = 0
    ) -> Tensor | None:
        """Return normals (C, count) of one step from a generator for large counts, or None if there is none.

        On a GPU this is the device's generator, seeded from key, purpose, use and step. A chain's numbers then also
        depend on the number of chains.
        """
        if self.device.type == "cuda":
            # Another part of a set has other numbers
            part = f"/{self.first_chain}" if self.first_chain else ""
            seed = derive_key(self.key, f"{int(purpose)}/{use}/{step}{part}") >> 1
            if self._generator is None:
                self._generator = torch.Generator(self.device)
            generator = self._generator.manual_seed(seed)
            return torch.randn(self.chains, count, dtype=dtype, device=self.device, generator=generator)
        if not self.compiled:
            return None
        from mhrun.native.numbers import normals

        dtype_name = "float32" if dtype == torch.float32 else "float64"
        drawn = normals(self.key, step, self._numbers.numpy(), count, int(purpose), use, dtype_name)
        return torch.from_numpy(drawn)

    def at(self, step: int, ahead: int = 64) -> Draws:
        """Return the numbers of one step; up to `ahead` consecutive steps are prefetched together."""
        return Draws(self, step, ahead)


class Draws:
    """The random numbers of one step, for all chains. Set `step` to advance.

    Each number can be drawn once per step: drawing it again raises RuntimeError, because repeated numbers are not
    independent. Repeated draws for one purpose need different values of `use`.

    Numbers of several steps are generated together and cached. Since they are functions of the step, only speed is
    affected.
    """

    def __init__(self, streams: Streams, step: int, ahead: int = 64) -> None:
        self.streams = streams
        self._ahead = ahead
        self._kept: dict[Hashable, tuple[int, Tensor]] = {}
        self._drawn: set[Hashable] = set()
        none = torch.empty(0, 0, dtype=torch.int32, device=streams.device)
        self._grown: tuple[int, Hashable, Tensor, Tensor] = (0, None, none, none)
        self._pass: tuple[Hashable, int, Tensor] = (None, 0, none)
        self._labels: tuple[Hashable, Tensor] = (None, none)
        self._children: dict[str, Draws] = {}
        self.step = step

    @property
    def step(self) -> int:
        """The step whose numbers these are."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self._drawn.clear()

    # Functions of the step number. A kernel has no other access to it: a bool selects one of a few kinds of step, and
    # a tensor enters the arithmetic.

    def due(self, every: int, last: bool = False) -> bool:
        """Return whether this is one of the steps 1, 1 + every, ...; with `last`, every, 2 every, ...; 0: never."""
        return bool(every) and (self.step if last else self.step - 1) % every == 0

    def before(self, step: int) -> bool:
        """Return whether this is one of the first `step` steps."""
        return self.step <= step

    def coin(self, name: str, every: int) -> bool:
        """Return one fair coin toss common to all chains, for the `every` steps that end with this one."""
        if name not in self._children:  # generated on the host, without device synchronisation
            self._children[name] = Streams(derive_key(self.streams.key, name), 1).at(0, self._ahead)
        child = self._children[name]
        child.step = self.step // every
        return bool(child.uniform(Purpose.EXCHANGE)[0] < 0.5)

    def parity(self, every: int) -> int:
        """Return 0 and 1 alternately, changing after each `every` steps."""
        return self.step // every % 2

    def number(
        self, name: str, function: Callable[[int], float], dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """Return ``function(step)`` as a tensor () on the device; `name` identifies it in the cache."""

        def make(first: int, steps: int) -> Tensor:
            values = [function(step) for step in range(first, first + steps)]
            return torch.tensor(values, dtype=dtype, device=self.device)

        return self._take(("number", name), 1, make, 1)

    @property
    def time(self) -> Tensor:
        """The number of this step, from 1, as a tensor () of int64."""
        return self.number("step", lambda step: step, torch.int64)

    def part(self, name: str, rows: Tensor, every: int = 1) -> Draws:
        """Return the numbers of stream `name` for chains `rows` (R,) and the `every` steps that end with this one."""
        if name not in self._children:
            self._children[name] = self.streams.of(name, rows).at(0, self._ahead)
        child = self._children[name]
        child.step = self.step // every
        return child

    def trial(self, name: str, rows: Tensor, number: int, trials: int) -> Draws:
        """Return the numbers of stream `name` for chains `rows` (R,) and trial `number` of `trials` in this step."""
        return self.streams.of(name, rows).at(self.step * trials + number, ahead=1)

    def again(self) -> Draws:
        """Return the numbers of this step again, for reproducing what another part has drawn."""
        return self.streams.at(self.step, ahead=1)

    def of_steps(self, steps: Tensor, rows: Tensor, n: int, start: int, stop: int) -> Tensor:
        """Return elements start..stop of the minibatches of chains `rows` (R,) at `steps` (R,): (R, stop - start)."""
        return self.streams.permuted(steps, self.streams.numbers[rows], n, start, stop)

    @property
    def chains(self) -> int:
        """The number of chains C."""
        return self.streams.chains

    @property
    def device(self) -> torch.device:
        """The device of the numbers."""
        return self.streams.device

    @property
    def on_host(self) -> bool:
        """Whether tensor values can be read without device synchronisation: on a CPU, outside a captured step."""
        return self.device.type == "cpu"

    def normal(
        self, purpose: Purpose, count: int, use: int = 0, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """Return standard normals (C, count): Box-Muller on 32-bit words, at most 6.66 in absolute value.

        On a GPU, counts of `MANY` or more come from the device's generator, see `Streams.many_normals`.
        """
        blocks = -(-count // 4)
        if count >= MANY:
            self._check_unused((purpose, use))
            if (numbers := self.streams.many_normals(purpose, self.step, count, dtype, use)) is not None:
                return numbers
            return normals_of(self.streams.words(purpose, self.step, 1, blocks, use))[0, :, :count].to(dtype)

        def make(first: int, steps: int) -> Tensor:
            return normals_of(self.streams.words(purpose, first, steps, blocks, use))[..., :count]

        self._check_unused((purpose, use))
        return self._take((purpose, use, count), 4 * blocks, make).to(dtype)

    def uniform(self, purpose: Purpose, use: int = 0) -> Tensor:
        """Return uniforms in (0, 1), (C,), float64, with 53 random bits."""
        self._check_unused((purpose, use))
        return self._take(
            (purpose, use),
            4,
            lambda first, steps: uniforms_of(self.streams.words(purpose, first, steps, 1, use)),
        )

    def uniforms(self, purpose: Purpose, count: int, use: int = 0) -> Tensor:
        """Return uniforms in (0, 1), (C, count), float64, with 32 random bits."""
        self._check_unused((purpose, use))
        blocks = -(-count // 4)

        def make(first: int, steps: int) -> Tensor:
            words = self.streams.words(purpose, first, steps, blocks, use)
            return ((words.double() + 0.5) * 2.0**-32).flatten(start_dim=2)[..., :count]

        if count >= MANY:
            return make(self.step, 1)[0]
        return self._take((purpose, use, count), 4 * blocks, make)

    def index(
        self,
        n: int,
        m: int,
        *,
        replacement: bool,
        use: int = 0,
        start: int = 0,
        rows: Tensor | None = None,
        common: bool = False,
    ) -> Tensor:
        """Return the indices of a minibatch (C, m), int64, uniform over the n data and fresh in each step.

        Args:
            n: number of data.
            m: number of indices.
            replacement: draw independent indices, from 64-bit words (bias below n / 2^64). Otherwise the indices are
                elements start, start + 1, ... of a random permutation of the n data.
            use: number of the draw in this step.
            start: current size of a batch that is extended.
            rows: the chains whose batch is extended (R,); None for all.
            common: one minibatch for all chains, that of the first: (1, m).
        """
        self._check_unused((Purpose.MINIBATCH, use, start))
        if start and not replacement:
            return self._more(n, start, start + m, use, rows)
        numbers = self.streams.numbers
        if common:
            rows = torch.zeros(1, dtype=torch.int64, device=self.device)
        chains = numbers if rows is None else numbers[rows]

        def make(first: int, steps: int) -> Tensor:
            if replacement:
                return self.streams.independent(first, steps, n, m, use, start, rows)
            step = torch.arange(first, first + steps, device=self.device).repeat_interleave(len(chains))
            drawn = self.streams.permuted(step, chains.repeat(steps), n, 0, m, use)
            return drawn.view(steps, len(chains), m)

        if rows is not None and not common:
            return make(self.step, 1)[0]
        size = m if replacement or self.streams.compiled or m > n // 2 else enough(n, m)
        return self._take((n, m, replacement, use, start, common), size, make, len(chains))

    def _more(self, n: int, start: int, stop: int, use: int, rows: Tensor | None) -> Tensor:
        """Return elements start..stop of this step's permutation for chains `rows` (R,): (R, stop - start).

        A permutation is generated from its beginning. If it grows in small increments, extra elements are generated.
        """
        if rows is None:
            rows = torch.arange(self.chains, device=self.device)
        step, key, where, order = self._grown
        at = where[rows] if (step, key) == (self.step, (n, use)) else None
        if at is None or order.shape[1] < stop or bool((at < 0).any()):
            upto = stop
            if 2 * (stop - start) < start:
                bound = n // 2 if stop <= n // 2 else n
                upto = max(stop, min(2 * stop, bound, _HELD // max(1, len(rows))))
            chains = self.streams.numbers[rows]
            order = self.streams.permuted(
                torch.full_like(chains, self.step), chains, n, 0, upto, use, torch.int32
            )
            at = torch.arange(len(rows), device=self.device)
            where = torch.full((self.chains,), -1, device=self.device)
            where[rows] = at
            self._grown = (self.step, (n, use), where, order)
        return order[at, start:stop].long()

    def arrivals(self, n: int, start: int, stop: int, rows: Tensor | None = None) -> Marks:
        """Return the random numbers of arrivals start..stop of a Poisson process for chains `rows` (R,); None for all.

        Arrival j has the words of blocks 2j and 2j + 1.
        """
        self._check_unused(("arrivals", (start,)))
        count = stop - start

        def make(first: int, steps: int) -> Tensor:
            return self.streams.marks(first, steps, n, start, count, rows)

        if start or rows is not None:
            marks = make(self.step, 1)[0]
        else:
            marks = self._take(("arrivals", n, count), 8 * count, make)
        return Marks(marks[:, 0].long(), marks[:, 1], marks[:, 2], marks[:, 3])

    def uniforms_at(self, purpose: Purpose, places: Tensor, use: int = 0) -> Tensor:
        """Return the elements `places` (C, k) of `uniforms` of any count, (C, k): those of a few among many."""
        self._check_unused((purpose, use))
        step = torch.full((), self.step, dtype=torch.int64, device=self.device)
        high = ((step >> 32) & 0xFFFFF) | (use << 20) | (int(purpose) << 24)
        chain = self.streams.numbers[:, None]
        words = philox(places >> 2, step & LOW, high, chain, self.streams.key)
        blocks = torch.stack(torch.broadcast_tensors(*words), -1)
        return (blocks.gather(-1, (places & 3)[..., None])[..., 0].double() + 0.5) * 2.0**-32

    def piece(self, n: int, m: int) -> Tensor:
        """Return this step's piece (C, m) of a pass over all data: consecutive pieces of a random permutation.

        A pass has n // m pieces. The permutation of pass k = 1, 2, ... is drawn as that of step k with use = 1. It is
        cached at 4 bytes an index, as far as memory allows.
        """
        pass_number, piece = divmod(self.step - 1, n // m)
        start = piece * m
        key, first, order = self._pass
        if key != (n, m, pass_number) or not first <= start < first + order.shape[1]:
            pieces = max(1, _HELD // (self.chains * m))
            first, stop = start, min(start + pieces * m, n // m * m)
            chains = self.streams.numbers
            steps = torch.full_like(chains, pass_number + 1)
            order = self.streams.permuted(steps, chains, n, first, stop, 1, torch.int32)
            self._pass = ((n, m, pass_number), first, order)
        return order[:, start - first : start - first + m].long()

    def choices(
        self, count: int, m: int, *, start: int = 0, rows: Tensor | None = None, common: bool = False
    ) -> Tensor:
        """Return whole numbers below `count`, uniform: (C, m), or (1, m) if `common`; with `rows` of those chains only.

        They are functions of step, chain and place: `start` is the place of the first in the minibatch. Drawing them
        again in one step gives the same numbers, as both points of a test need them.
        """
        if common:
            rows = torch.zeros(1, dtype=torch.int64, device=self.device)
        first, last = start // 4, -(-(start + m) // 4)
        words = self.streams.words(Purpose.MINIBATCH, self.step, 1, last - first, _TRANSFORM, first, rows)[
            0
        ].flatten(1)
        return (words[:, start - 4 * first : start - 4 * first + m] * count) >> 32

    def shuffled_share(self, n: int, share: float, m: int) -> Tensor:
        """Return, for each of n data, the datum whose label it has in this pass of n // m steps, (n,).

        A random share of the data pass their labels on in a cycle of random order; the others keep theirs. It is the
        same for all chains.
        """
        pass_number = (self.step - 1) // max(1, n // m)
        key, table = self._labels
        if key != (n, share, pass_number):
            zero = torch.zeros(1, dtype=torch.int64, device=self.device)
            order = self.streams.permuted(zero + pass_number + 1, zero, n, 0, n, _RELABEL)[0]
            relabelled = order[: round(share * n)]
            table = torch.arange(n, device=self.device)
            table[relabelled] = relabelled.roll(1)
            self._labels = ((n, share, pass_number), table)
        return table

    def _check_unused(self, key: Hashable) -> None:
        if isinstance(key, tuple) and isinstance(key[1], int) and not 0 <= key[1] < USES:
            raise RuntimeError(f"use = {key[1]} is out of range: it must be at least 0 and below {USES}.")
        if key in self._drawn:
            raise RuntimeError(f"{key} is drawn twice in one step: give each draw a different `use`.")
        self._drawn.add(key)

    def _take(
        self, key: Hashable, size: int, make: Callable[[int, int], Tensor], chains: int | None = None
    ) -> Tensor:
        """Return this step's slice of the cached ``make(first step, K) -> (K, C, ...)`` with `size` numbers a chain."""
        first, block = self._kept.get(key, (0, None))
        if block is None or not first <= self.step < first + block.shape[0]:
            steps = max(1, min(self._ahead, _PREFETCH // ((chains or self.chains) * size)))
            first, block = self.step, make(self.step, steps)
            self._kept[key] = (first, block)
        return block[self.step - first]


class Marks(NamedTuple):
    """The random numbers of some arrivals, each (R, k)."""

    slot: Tensor  # uniform below n, int64, and
    coin: Tensor  # uniform in (0, 1): a datum by an alias table
    gap: Tensor  # Exponential(1): time since the arrival before
    uniform: Tensor  # in (0, 1): for thinning
