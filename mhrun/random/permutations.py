"""Random permutations of the data, generated piece by piece."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from mhrun.random.streams import Streams

_HELD = 1 << 27  # most indices kept in memory
_RELABEL = 13  # the use of Purpose.MINIBATCH for permuted labels


class Permutations:
    """The permutations of some chains, each cached until another one is needed."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        none = torch.empty(0, 0, dtype=torch.int32, device=streams.device)
        self._grown: tuple[int, Hashable, Tensor, Tensor] = (0, None, none, none)
        self._pass: tuple[Hashable, int, Tensor] = (None, 0, none)
        self._labels: tuple[Hashable, Tensor] = (None, none)

    def more(self, step: int, n: int, start: int, stop: int, use: int, rows: Tensor | None) -> Tensor:
        """Return elements start..stop of a step's permutation for chains `rows` (R,): (R, stop - start).

        A permutation is generated from its beginning. If it grows in small increments, extra elements are generated.
        """
        if rows is None:
            rows = torch.arange(self.streams.chains, device=self.streams.device)
        last, key, where, order = self._grown
        at = where[rows] if (last, key) == (step, (n, use)) else None
        if at is None or order.shape[1] < stop or bool((at < 0).any()):
            upto = stop
            if 2 * (stop - start) < start:
                bound = n // 2 if stop <= n // 2 else n
                upto = max(stop, min(2 * stop, bound, _HELD // max(1, len(rows))))
            chains = self.streams.numbers[rows]
            order = self.streams.permuted(torch.full_like(chains, step), chains, n, 0, upto, use, torch.int32)
            at = torch.arange(len(rows), device=self.streams.device)
            where = torch.full((self.streams.chains,), -1, device=self.streams.device)
            where[rows] = at
            self._grown = (step, (n, use), where, order)
        return order[at, start:stop].long()

    def piece(self, step: int, n: int, m: int) -> Tensor:
        """Return a step's piece (C, m) of a pass over all data: consecutive pieces of a random permutation.

        A pass has n // m pieces. The permutation of pass k = 1, 2, ... is drawn as that of step k with use = 1. It is
        cached at 4 bytes an index, as far as memory allows.
        """
        pass_number, piece = divmod(step - 1, n // m)
        start = piece * m
        key, first, order = self._pass
        if key != (n, m, pass_number) or not first <= start < first + order.shape[1]:
            pieces = max(1, _HELD // (self.streams.chains * m))
            first, stop = start, min(start + pieces * m, n // m * m)
            chains = self.streams.numbers
            steps = torch.full_like(chains, pass_number + 1)
            order = self.streams.permuted(steps, chains, n, first, stop, 1, torch.int32)
            self._pass = ((n, m, pass_number), first, order)
        return order[:, start - first : start - first + m].long()

    def relabelled(self, step: int, n: int, share: float, m: int) -> Tensor:
        """Return, for each of n data, the datum whose label it has in this pass of n // m steps, (n,).

        A random share of the data pass their labels on in a cycle of random order; the others keep theirs. It is the
        same for all chains.
        """
        pass_number = (step - 1) // max(1, n // m)
        key, table = self._labels
        if key != (n, share, pass_number):
            zero = torch.zeros(1, dtype=torch.int64, device=self.streams.device)
            order = self.streams.permuted(zero + pass_number + 1, zero, n, 0, n, _RELABEL)[0]
            relabelled = order[: round(share * n)]
            table = torch.arange(n, device=self.streams.device)
            table[relabelled] = relabelled.roll(1)
            self._labels = ((n, share, pass_number), table)
        return table
