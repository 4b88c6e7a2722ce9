"""The registry of compiled loops."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

from mhrun.errors import UserError, cut, place_in
from mhrun.kernels.stationary import user_parts
from mhrun.ownership import is_bundled, is_library, is_own_file
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
    loop = built_loop(kernel, target, key, threads)
    of_user = [*user_parts(kernel), *([] if is_bundled(target.model) else [target.model])]
    # The builder of a user's kernel is the user's too, and may return any loop: its errors stay as they are.
    if loop is None or not of_user or kernel in of_user:
        return loop
    return _LoopWithUserPieces(loop, of_user)


def built_loop(kernel: Kernel, target: Target, key: int, threads: int) -> Loop | None:
    """Return what `compile_loop` does, without its errors for functions of the user: for loops inside another loop."""
    builder = _BUILDERS.get(type(kernel))
    return None if builder is None else builder(kernel, target, key, threads)


class _LoopWithUserPieces:
    """A loop with compiled functions of the user; reports their compile errors as `UserError`."""

    def __init__(self, loop: Loop, of_user: list[Any]) -> None:
        self._loop = loop
        self._of_user = of_user

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
            failed = _FAILED.findall(str(error))
            names = ", ".join(type(part).__name__ for part in self._of_user)
            raise UserError(
                f"the compiled form of {names} does not compile: {_reason(str(error), failed)}. executor=torch runs "
                "without it."
            ) from error


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FAILED = re.compile(r"resolving callee type: Function\(<function (?:[\w.<>]+\.)?(\w+) at")
# Paths may have spaces.
_PLACE = re.compile(r"(?:typing of [a-z -]+ at|File) \"?(.+?\.py)\"?(?: \(|, line )(\d+)")
_REASONS = (  # of numba, the most telling first
    re.compile(r"^\s*(\w+Error: (?!Failed in|No implementation).+)$", re.MULTILINE),
    re.compile(
        r"^\s*(Untyped global name .+?|Unknown attribute .+?|Use of unsupported .+?|Cannot .+?)[:.]?$",
        re.MULTILINE,
    ),
    re.compile(r"^\s*>>> (.+)$", re.MULTILINE),
)


def _reason(message: str, pieces: Collection[str]) -> str:
    """Return why numba cannot compile a piece: the innermost reason, and the first place in the user's code.

    Args:
        message: numba's.
        pieces: names of functions that cannot be compiled, which are no reason: the reason is inside them.
    """
    text = _COLOUR.sub("", message)
    reason = "numba gives no reason"
    for kind in _REASONS:
        found = [one.strip().rstrip(".") for one in kind.findall(text)]
        found = [one for one in found if one.partition("(")[0] not in pieces]
        if found:
            reason = found[-1]
            break
    reason = cut(reason, 200)
    reason = f"there is no {reason}" if re.fullmatch(r"[\w.]+\(.*\)", reason) else reason
    places = [(str(Path(file).resolve()), int(line)) for file, line in _PLACE.findall(text)]
    of_user = [place_in(*place) for place in places if not is_own_file(place[0]) and not is_library(place[0])]
    return f"{reason} ({of_user[0]})" if of_user else reason
