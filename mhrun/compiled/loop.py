"""The registry of compiled loops."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from mhrun.errors import UserError
from mhrun.kernels.stationary import own_parts
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
    loop = None if builder is None else builder(kernel, target, key, threads)
    own = [
        *own_parts(kernel),
        *([] if type(target.model).__module__.startswith("mhrun.") else [target.model]),
    ]
    return loop if loop is None or not own else _OfOwnPieces(loop, own)


class _OfOwnPieces:
    """A loop with pieces of the user's, whose mistakes are the user's to mend."""

    def __init__(self, loop: Loop, own: list[Any]) -> None:
        self._loop = loop
        self._own = own

    def advance(self, state: State, first_step: int, controls: Controls) -> tuple[State, Record]:
        """Do the steps.

        Raises:
            UserError: numba cannot compile the pieces.
        """
        try:
            return self._loop.advance(state, first_step, controls)
        except Exception as error:
            if not type(error).__module__.startswith("numba."):
                raise
            names = ", ".join(type(part).__name__ for part in self._own)
            raise UserError(
                f"the compiled form of {names} does not compile: {_reason(str(error))}. executor=torch runs without it."
            ) from error


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r"(?:at |File \")([^\s\"]+\.py)\"?(?: \(|, line )(\d+)")
_REASON = re.compile(
    r"^\s*(?:>>> (.+)|(Unknown attribute .+)|(\w+Error: (?!Failed in).+)|(Cannot .+))$", re.MULTILINE
)
_SIGNATURE = re.compile(r"\w+\(.*\)")
_OURS = str(Path(__file__).parents[1])


def _reason(message: str) -> str:
    """Return what numba says of a piece: the innermost reason, and the first place outside of this package."""
    text = _COLOUR.sub("", message)
    found = [next(filter(None, groups)) for groups in _REASON.findall(text)]
    reason = found[-1].strip().rstrip(".") if found else "no reason is given"
    reason = f"there is no {reason}" if _SIGNATURE.fullmatch(reason) else reason
    places = [
        (Path(file).name, line)
        for file, line in _PLACE.findall(text)
        if not str(Path(file).resolve()).startswith(_OURS)
    ]
    return f"{reason} ({places[0][0]}, line {places[0][1]})" if places else reason
