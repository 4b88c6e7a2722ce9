"""The calling convention of compiled loops over chains and steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from mhrun.native import Piece, compiled_once, over_chains
from mhrun.native.philox import split_key
from mhrun.target import Target
from mhrun.types import INFO_DTYPES, Controls, Evaluation, Record, State


class Range(NamedTuple):
    """Chains, or steps of a block: first, first + 1, ..., last - 1."""

    first: Any
    last: Any


class Stream(NamedTuple):
    """The random numbers of a block."""

    key: Any  # two words, uint64; those of exchanges are three such keys
    first_step: Any  # uint64

    @classmethod
    def of(cls, key: int, first_step: int) -> Stream:
        """Return the random numbers of a key of 64 bits."""
        return cls(split_key(key), np.uint64(first_step))


class Points(NamedTuple):
    """The points of the chains, changed in place."""

    theta: Any  # (C, D)
    log_prior: Any  # (C,)

    @classmethod
    def of(cls, state: State) -> Points:
        """Return copies of the points of a state, in float64."""
        point = state.evaluation
        return cls(point.theta.double().numpy().copy(), point.log_prior.double().numpy().copy())

    def evaluation(self) -> Evaluation:
        """Return them for a state."""
        return Evaluation(torch.from_numpy(self.theta), torch.from_numpy(self.log_prior))


class ControlArrays(NamedTuple):
    """The controls of a block, (K, C) each."""

    step_size: Any
    noise_temperature: Any
    scale: Any  # n / T
    prior_power: Any

    @classmethod
    def of(cls, controls: Controls, target: Target) -> ControlArrays:
        """Return the arrays of `controls`."""
        return cls(
            controls.step_size.numpy(),
            controls.noise_temperature.numpy(),
            (target.n / controls.temperature).numpy(),
            target.prior_power(controls.temperature).numpy(),
        )


class Arguments(NamedTuple):
    """The arguments of a loop; what differs between loops is in NamedTuples that each defines."""

    stream: Stream
    settings: Any  # what stays the same
    chains: Any  # the state of the chains, (C, ...), changed in place
    schedule: Any  # the controls of the steps, (K, C)
    args: Any  # of the pieces
    out: Any  # the record of each step, (C, K, ...)


Out = TypeVar("Out", bound=tuple[Any, ...])


def record_arrays(out: type[Out], controls: Controls, dim: int) -> Out:
    """Return a NamedTuple of uninitialised arrays: ``theta`` (C, K, D), and fields of `Info`, (C, K) each."""
    steps, chains = controls.step_size.shape

    def array(name: str) -> npt.NDArray[Any]:
        if name == "theta":
            return np.empty((chains, steps, dim))
        return np.empty((chains, steps), INFO_DTYPES[name])

    cls: Any = out
    arrays: Out = cls._make(array(name) for name in cls._fields)
    return arrays


def record_of(out: tuple[Any, ...], **constants: float) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of `out`, and fields of `Info` (C, K) that are the same in all steps.

    The latter take no memory for each step.
    """
    arrays: dict[str, npt.NDArray[Any]] = cast(Any, out)._asdict()
    shape = arrays["theta"].shape[:2]
    return arrays | {
        name: np.broadcast_to(np.asarray(value, INFO_DTYPES[name]), shape)
        for name, value in constants.items()
    }


class AliasSlots(NamedTuple):
    """The alias table of the bounds' weights, as one array for compiled loops."""

    n: Any  # uint64
    slots: Any  # (n, 3): cut, other datum and weight, together in memory
    total: Any

    @classmethod
    def of(cls, target: Target) -> AliasSlots:
        """Return that of a target with bounds."""
        table, weights = target.bounded.table, target.bounded.bounds.weights
        slots = torch.stack((table.cut, table.other.double(), weights), -1).numpy()
        return cls(np.uint64(target.n), slots, float(table.total))


class Exchanged(NamedTuple):
    """What rungs of a ladder exchange between two steps."""

    points: tuple[npt.NDArray[np.float64], ...]  # (C, ...) each: theta, and what follows it
    stopped: npt.NDArray[np.bool_]  # (C,), chains that have stopped, and exchange no more


def no_workspace(part: int) -> None:
    """Return None, for loops that need no workspace."""


class BlockLoop(ABC):
    """A compiled loop, called for one block of steps after the other.

    Args:
        body: a piece, ``body(chains: Range, steps: Range, work, arguments)``, which is compiled alone or inside a
            ladder's. `arguments` are those of `prepare`, and `work` is the workspace of a thread.
        target: the target.
        key: of the random numbers, 64 bits.
        threads: number of threads for the chains.
        work: makes the workspace of a part of the chains.
        rungs: chains that one thread has together, because they exchange.
    """

    def __init__(
        self,
        body: Piece,
        target: Target,
        key: int,
        threads: int,
        *,
        work: Callable[[int], object] = no_workspace,
        rungs: int = 1,
    ) -> None:
        self.body = body
        self.threads = threads
        self._target = target
        self._key = key
        self._work = work
        self._rungs = rungs

    @abstractmethod
    def prepare(self, state: State, first_step: int, controls: Controls) -> Arguments:
        """Return the arguments for the K steps from `first_step` on; every field of `controls` is (K, C)."""

    @abstractmethod
    def finish(self, arguments: Arguments) -> tuple[State, Record]:
        """Return the state after the steps and their record, from the arguments of the finished loop."""

    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the K steps from `first_step` on; every field of `controls` is (K, C)."""
        arguments, rungs = self.prepare(state, first_step, controls), self._rungs
        steps, chains = controls.step_size.shape
        body, all_steps = compiled_once(_alone, self.body), Range(0, steps)

        def block(first: int, last: int, work: object) -> None:
            body(Range(first * rungs, last * rungs), all_steps, work, arguments)

        over_chains(block, chains // rungs, self.threads, own=self._work)
        finished, record = self.finish(arguments)
        # Without a step a loop has not computed what the first one would.
        return finished if steps else state, record


def _alone(body: Piece) -> Piece:
    return body
