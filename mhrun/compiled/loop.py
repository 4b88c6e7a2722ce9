"""The registry of compiled loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from mhrun.parts import Kernel
from mhrun.target import Target
from mhrun.types import Controls, Record, State


class Loop(Protocol):
    """A compiled loop over chains and steps."""

    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the K steps from `first_step` on; every field of `controls` is (K, C).

        The record has theta after every step, (C, K, D).
        """
        ...


Builder = Callable[[Any, Target, int, int], Loop | None]
"""(kernel, target, key, threads) -> the loop, or None if one of the kernel's parts has no compiled form."""

_BUILDERS: dict[type, Builder] = {}


def register(kernel: type, builder: Builder) -> None:
    """Register `builder` for kernels of exactly this type.

    A subclass may change the step and therefore needs its own builder.
    """
    _BUILDERS[kernel] = builder


def compile_loop(kernel: Kernel, target: Target, key: int, threads: int) -> Loop | None:
    """Return the compiled loop of a kernel on a target, or None if there is none.

    Args:
        kernel: the kernel.
        target: its data and model must have a compiled form too.
        key: of the random numbers, 64 bits.
        threads: number of threads for the chains.
    """
    builder = _BUILDERS.get(type(kernel))
    return None if builder is None else builder(kernel, target, key, threads)
