"""Arguments of a compiled loop over chains and steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mhrun.native import Piece, compiled_once, over_chains
from mhrun.native.indices import Workspaces
from mhrun.target import Target
from mhrun.types import INFO_DTYPES, Controls, Record, State


class Range(NamedTuple):
    """Chains, or steps of a block: first, first + 1, ..., last - 1."""

    first: Any
    last: Any


class Stream(NamedTuple):
    """The random numbers of a block."""

    key: Any  # two words, uint64
    first_step: Any  # uint64


class Chains(NamedTuple):
    """The state of the chains of a Metropolis-Hastings loop, changed in place."""

    theta: Any  # (C, D)
    kept: Any  # (C, 3): log prior, and the mean and variance of the log-likelihood that the pairing keeps


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
    """The arguments of a loop; each loop has NamedTuples of its own for what differs."""

    stream: Stream
    settings: Any  # what stays the same
    chains: Any  # the state of the chains, (C, ...), changed in place
    schedule: Any  # the controls of the steps, (K, C)
    args: Any  # of the pieces
    out: Any  # the record of each step, (C, K, ...)


Out = TypeVar("Out", bound=tuple[Any, ...])


def record_arrays(out: type[Out], steps: int, chains: int, dim: int) -> Out:
    """Return a NamedTuple of uninitialised arrays: ``theta`` (C, K, D), and fields of `Info`, (C, K) each."""

    def array(name: str) -> npt.NDArray[Any]:
        if name == "theta":
            return np.empty((chains, steps, dim))
        return np.empty((chains, steps), INFO_DTYPES[name])

    cls: Any = out
    arrays: Out = cls._make(array(name) for name in cls._fields)
    return arrays


def constant_fields(steps: int, chains: int, **values: float) -> dict[str, npt.NDArray[Any]]:
    """Return fields of `Info` (C, K) that are the same in all steps, without memory for each step."""
    return {
        name: np.broadcast_to(np.asarray(value, INFO_DTYPES[name]), (chains, steps))
        for name, value in values.items()
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


class LoopInputs(NamedTuple):
    """A block of K steps, prepared for ``body(chains: Range, steps: Range, work, arguments)``.

    `work` is a thread's `mhrun.native.indices.Workspace`.
    """

    arguments: Any  # a NamedTuple, specific to the body
    steps: int  # K
    points: tuple[npt.NDArray[np.float64], ...]  # (C, ...) each: theta, and what follows it in an exchange
    stopped: npt.NDArray[np.bool_]  # (C,), chains that have stopped
    theta: npt.NDArray[np.float64]  # (C, K, D), the record of theta
    finish: Callable[[], tuple[State, Record]]

    def run(self, body: Piece, threads: int, work: Workspaces) -> tuple[State, Record]:
        """Run all steps, with chains in parallel."""
        loop, steps = compiled_once(_alone, body), Range(0, self.steps)

        def block(first: int, last: int, work: object) -> None:
            loop(Range(first, last), steps, work, self.arguments)

        over_chains(block, len(self.stopped), threads, own=work)
        return self.finish()


def _alone(body: Piece) -> Piece:
    return body
