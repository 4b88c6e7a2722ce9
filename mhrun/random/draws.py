"""The random numbers of one step."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.errors import UserError
from mhrun.random.permutations import Permutations
from mhrun.random.philox import LOW, enough, normals_of, philox, uniforms_of
from mhrun.random.streams import USES, Purpose, Streams, derive_key

MANY = 4096  # normals per chain and step from which on steps are not prefetched
_PREFETCH = 1 << 17  # numbers generated per call when steps are prefetched
_KEYS = 64  # most blocks of numbers that are kept
_TRANSFORM = 14  # the use of Purpose.MINIBATCH for augmentation


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
        self._permutations = Permutations(streams)
        self._children: dict[tuple[str, str], Draws] = {}  # by kind and name
        self._coins: dict[str, tuple[int, bool]] = {}
        self._root: Draws = self  # the numbers of the whole step, if these are those of a part
        self.step = step

    @property
    def step(self) -> int:
        """The step whose numbers these are."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self._drawn.clear()
        for child in self._children.values():
            child._drawn.clear()

    def rewind(self) -> None:
        """Allow the numbers of this step to be drawn once more."""
        self.step = self._step

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
        step = self.step // every
        key = ("coin", name)
        if key not in self._children:  # generated on the host, without device synchronisation
            self._children[key] = Draws(Streams(derive_key(self.streams.key, name), 1), 0, self._ahead)
        if self._coins.get(name, (None, False))[0] != step:  # a second call in a step returns the same
            child = self._children[key]
            child.step = step
            self._coins[name] = (step, bool(child.uniform(Purpose.EXCHANGE)[0] < 0.5))
        return self._coins[name][1]

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
        """Return the numbers of stream `name` for chains `rows` (R,) and the `every` steps that end with this one.

        On a GPU a name stands for the same rows in all steps; comparing them would wait for the device.
        """
        key, step = ("part", name), self.step // every
        known = self._children.get(key)
        if known is None or (
            self.on_host and not torch.equal(known.streams.numbers, self.streams.numbers[rows])
        ):
            self._children[key] = known = self._derived(self.streams.of(name, rows), step, self._ahead)
        elif known.step != step:  # else what it drew in this step counts as drawn
            known.step = step
        return known

    def trial(self, name: str, rows: Tensor, number: int, trials: int) -> Draws:
        """Return the numbers of stream `name` for chains `rows` (R,) and trial `number` of `trials` in this step.

        For loops of any length, as of a slice sampler: trials are numbered from 0, and `trials` is more than the
        largest number.
        """
        return self._derived(self.streams.of(name, rows), self.step * trials + number, ahead=1)

    def again(self) -> Draws:
        """Return the numbers of this step again, for reproducing what another part has drawn."""
        return self._derived(self.streams, self.step, ahead=1)

    def _derived(self, streams: Streams, step: int, ahead: int) -> Draws:
        """Return other numbers for the same step: its permutation of labels is the same."""
        derived = Draws(streams, step, ahead)
        derived._root = self._root
        return derived

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
        return self._take(("normal", purpose, use, count), 4 * blocks, make).to(dtype)

    def uniform(self, purpose: Purpose, use: int = 0) -> Tensor:
        """Return uniforms (C,), float64, in (0, 1] with 53 random bits; 1, by rounding, has a probability of 2^-53."""
        self._check_unused((purpose, use))
        return self._take(
            ("uniform", purpose, use),
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
        return self._take(("uniforms", purpose, use, count), 4 * blocks, make)

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
            return self._permutations.more(self.step, n, start, start + m, use, rows)
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
        return self._take(("index", n, m, replacement, use, start, common), size, make, len(chains))

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
        """Return this step's piece (C, m) of a pass over all data, see `Permutations.piece`."""
        return self._permutations.piece(self.step, n, m)

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
        """Return, for each of n data, the datum whose label it has in this pass, see `Permutations.relabelled`.

        The numbers of a part or of a trial have the labels of the step that they belong to.
        """
        return self._root._permutations.relabelled(self._root.step, n, share, m)

    def _check_unused(self, key: Hashable) -> None:
        """Note that these numbers are drawn in this step.

        Raises:
            UserError: they were drawn before, or their `use` is out of range; the error is in a user's part.
        """
        if isinstance(key, tuple) and isinstance(key[1], int) and not 0 <= key[1] < USES:
            raise UserError(
                f"use = {key[1]} is out of range: it must be at least 0 and below {USES}. For a loop of any length "
                "take the numbers from draws.trial(name, rows, number, trials)."
            )
        if key in self._drawn:
            first = key[0] if isinstance(key, tuple) else key
            if first == Purpose.MINIBATCH and isinstance(key, tuple) and len(key) == 3:
                raise UserError(
                    f"the data of a minibatch from number {key[2]} on are drawn twice in one step: keep them, as a "
                    "rule keeps the terms that its supply returned, or draw others with another `use`."
                )
            if isinstance(first, Purpose):
                raise UserError(
                    f"numbers for Purpose.{first.name} are drawn twice in one step: give each draw another `use`, "
                    "such as use=1."
                )
            raise UserError(f"the {first} of a step are drawn twice in it.")
        self._drawn.add(key)

    def _take(
        self, key: Hashable, size: int, make: Callable[[int, int], Tensor], chains: int | None = None
    ) -> Tensor:
        """Return this step's slice of the cached ``make(first step, K) -> (K, C, ...)`` with `size` numbers a chain."""
        first, block = self._kept.get(key, (0, None))
        if block is None or not first <= self.step < first + block.shape[0]:
            steps = max(1, min(self._ahead, _PREFETCH // ((chains or self.chains) * size)))
            first, block = self.step, make(self.step, steps)
            self._kept.pop(key, None)
            if len(self._kept) >= _KEYS:  # of minibatches of a new size in each step, say
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = (first, block)
        return block[self.step - first]


class Marks(NamedTuple):
    """The random numbers of some arrivals, each (R, k)."""

    slot: Tensor  # uniform below n, int64, and
    coin: Tensor  # uniform in (0, 1): a datum by an alias table
    gap: Tensor  # Exponential(1): time since the arrival before
    uniform: Tensor  # in (0, 1): for thinning
