"""The random words of chains, and the indices and normals that are made of many of them."""

from __future__ import annotations

import hashlib
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from mhrun.native.numbers import arrival_marks, independent_indices, normals, permutations
from mhrun.random.philox import (
    LOW,
    distinct_of,
    enough,
    independent_of,
    philox,
    scaled_of,
    stream_of,
    unit_of,
)
from mhrun.torch_private import assert_on_device

USES = 16
_SORTED = 1 << 22  # most indices drawn at once in torch, at about 150 bytes each
_SHUFFLED = 1 << 15  # most data of a permutation that takes less than compiling a loop
_SHUFFLES = 64  # and most such permutations
_SECOND_HALF = 1 << 31  # blocks of a minibatch from here on put the second half of the data in order


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
        self._shuffles = (
            0  # permutations of more than half of the data that were drawn without a compiled loop
        )

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
        shuffled = stop > n // 2
        many = len(steps) > 1 or stop > _SHUFFLED or self._shuffles == _SHUFFLES
        if self.compiled or large or (shuffled and many):
            index_dtype = np.int32 if dtype == torch.int32 else np.int64
            places = steps.cpu().numpy(), chains.cpu().numpy()
            drawn = permutations(self.key, *places, n, start, stop, use, index_dtype)
            return torch.from_numpy(drawn).to(self.device)
        if shuffled:
            self._shuffles += 1
            return self._shuffled(steps, chains, n, stop, use)[:, start:].to(dtype)
        part = max(1, _SORTED // stop)
        parts = zip(steps.split(part), chains.split(part), strict=True)
        return torch.cat([self._distinct(*rows, n, stop, use)[:, start:].to(dtype) for rows in parts])

    def _distinct(self, steps: Tensor, chains: Tensor, n: int, m: int, use: int) -> Tensor:
        """Return the first m <= n // 2 distinct values of the streams of some chains and steps, (R, m)."""
        count = enough(n, m)
        while True:
            distinct, short = distinct_of(stream_of(self._pairs(steps, chains, count, use), n), m)
            if self.device.type != "cpu":  # checked on the device, without synchronisation
                if self.device.type == "cuda":
                    assert_on_device(~short)
                return distinct
            if not short:
                return distinct
            count *= 2

    def _shuffled(self, steps: Tensor, chains: Tensor, n: int, m: int, use: int) -> Tensor:
        """Return the first m > n // 2 elements of the permutation of one chain and step, (1, m)."""
        half = n // 2
        drawn = self._distinct(steps, chains, n, half, use)
        is_left = torch.ones(n, dtype=torch.bool, device=self.device)
        is_left[drawn[0]] = False
        left = is_left.nonzero()[:, 0].tolist()
        count = m - half
        words = self._pairs(steps, chains, count, use, _SECOND_HALF)
        how_many = torch.arange(len(left), len(left) - 2 * words.shape[1], -1, device=self.device)
        ahead = stream_of(words, how_many.view(-1, 2))[0, :count].tolist()
        for place, distance in enumerate(ahead):  # Fisher & Yates
            other = place + distance
            left[place], left[other] = left[other], left[place]
        return torch.cat((drawn, torch.tensor(left[:count], device=self.device)[None]), dim=1)

    def _pairs(self, steps: Tensor, chains: Tensor, count: int, use: int, first: int = 0) -> Tensor:
        """Return the words (R, blocks, 4) for `count` indices, two from each block, from block `first` on."""
        high = ((steps >> 32) & 0xFFFFF) | (use << 20) | (int(Purpose.MINIBATCH) << 24)
        blocks = torch.arange(first, first + -(-count // 2), device=self.device)
        counters = (blocks, (steps & LOW)[:, None], high[:, None], chains[:, None])
        return torch.stack(torch.broadcast_tensors(*philox(*counters, self.key)), -1)

    def marks(
        self, first_step: int, steps: int, n: int, start: int, count: int, rows: Tensor | None
    ) -> Tensor:
        """Return slot, coin, gap and uniform of arrivals start, start + 1, ..., (steps, C, 4, count); see `Marks`."""
        if self.compiled:
            chains = (self._numbers if rows is None else self._numbers[rows]).numpy()
            return torch.from_numpy(arrival_marks(self.key, first_step, steps, chains, n, start, count))
        words = self.words(Purpose.ARRIVALS, first_step, steps, 2 * count, 0, 2 * start, rows)
        first_words, second_words = words[..., 0::2, :], words[..., 1::2, :]
        slot = scaled_of(first_words[..., 0], first_words[..., 1], n).double()
        gap = -unit_of(second_words[..., 0], second_words[..., 1]).log()
        coin = unit_of(first_words[..., 2], first_words[..., 3])
        uniform = unit_of(second_words[..., 2], second_words[..., 3])
        return torch.stack((slot, coin, gap, uniform), dim=-2)

    def many_normals(
        self, purpose: Purpose, step: int, count: int, dtype: torch.dtype, use: int
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
        dtype_name = "float32" if dtype == torch.float32 else "float64"
        drawn = normals(self.key, step, self._numbers.numpy(), count, int(purpose), use, dtype_name)
        return torch.from_numpy(drawn)
