"""Errors of a user's function, in one line."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mhrun.errors import UserError, is_of_launcher, is_out_of_memory, place_in
from mhrun.ownership import blame
from mhrun.torch_private import warn_of_slow_vmap


@contextmanager
def explained(what: str, given: Mapping[str, Tensor]) -> Iterator[None]:
    """Convert an error of a user's function into one line with its location and the shapes of its arguments.

    Raises:
        UserError: the function failed.
    """

    def line(error: Exception) -> str:
        reason, remedy = blame(error), _remedy(str(error), given)
        if remedy and (place := re.search(r" \([^()]*, line \d+\)$", reason)):
            return f"{what}{place[0]} {remedy}."
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in given.items())
        return f"{what} failed: {reason}; it had {shapes}."

    with converted(line):
        yield


@contextmanager
def converted(line: Callable[[Exception], str]) -> Iterator[None]:
    """Convert an error of a user's code into a `UserError`, of the line that a function makes of it.

    Raises:
        UserError: the code failed.
    """
    try:
        with unvalidated():
            yield
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error) or is_of_launcher(error):  # the command line or the launcher deals with it
            raise
        raise UserError(line(error)) from error


_READS = (  # parts of torch's errors where values are read under vmap, or by NumPy
    "data-dependent control flow",
    "calling .item()",
    "Cannot access data pointer",
    "Can't call numpy()",
    ".numpy() is not supported",
)

_IN_PLACE = (  # parts of torch's errors where a tensor that all chains share gets a value of each
    "vmap: inplace arithmetic",
    "doesn't match the broadcast shape",
)


_IN_C = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "long",
    torch.int32: "int",
    torch.bool: "bool",
}
"""What torch calls its types in errors of products."""


def _remedy(message: str, arguments: Mapping[str, Tensor]) -> str:
    """Return cause and remedy of the usual torch errors in a log-density; empty for other errors."""
    if any(text in message for text in _READS):
        return (
            "reads the value of a tensor (if, float, .item() or NumPy), which chains that are computed together do "
            "not allow; use torch.where and torch's own functions"
        )
    if any(text in message for text in _IN_PLACE):
        field = "y" if "y" in arguments else next((name for name in arguments if name != "theta"), "y")
        return (
            "changes in place a tensor that all chains share. Data must not be changed: write "
            f"{field} = batch.{field} - a, not batch.{field}.sub_(a). "
            "In place of filling a tensor of zeros, use torch.stack or torch.where"
        )
    if "to be at least 1D" in message:
        return (
            "takes a matrix product with a single number; a parameter of several numbers has their count, such as "
            '{"shape": 2, "prior": "Normal(0, 1)"}, and a product with one is written *'
        )
    if "randomness" in message and "vmap" in message:
        return "draws random numbers; a log-likelihood is a function of its arguments alone"
    if "two bool tensors" in message and (
        flags := [name for name, value in arguments.items() if value.dtype == torch.bool]
    ):
        return f"subtracts with {', '.join(flags)}, of type bool; write batch.{flags[0]}.double()"
    kinds = {name: value.dtype for name, value in arguments.items()}
    theta = kinds.get("theta", torch.float64)
    others = [name for name, kind in kinds.items() if kind != theta and name != "theta"]
    others = [name for name in others if _IN_C.get(kinds[name], "?") in message] or others
    if others and ("dtype" in message or "scalar type" in message):
        names, cast = ", ".join(others), "double" if theta == torch.float64 else "float"
        return (
            f"multiplies {_short(theta)} and {_short(kinds[others[0]])}: theta is {_short(theta)} and {names} "
            f"{'is' if len(others) == 1 else 'are'} not; write batch.{others[0]}.{cast}() or the like"
        )
    return ""


def _short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


_inside, _validates, _lock = 0, True, threading.Lock()


@contextmanager
def validated() -> Iterator[None]:
    """Switch on the validation of torch's distributions, which torch's compiler switches off when it is imported."""
    kind = torch.distributions.Distribution
    before, kind._validate_args = kind._validate_args, True
    try:
        yield
    finally:
        kind._validate_args = before


@contextmanager
def unvalidated() -> Iterator[None]:
    """Switch off the validation of torch's distributions, which reads values, and warnings of vmap's speed.

    A scale that underflows to 0 at some point then gives a log-density that is not finite: the candidate is rejected,
    or the chain stops, where an error would end all chains. Data outside of the support are refused before a run, see
    `mhrun.engine.model_checks.support`.

    torch warns at every call of an operation that vmap computes chain by chain, which is right, if slower.

    The switches are the process's: they are off while any thread is inside. Validation is afterwards as it was, and the
    warnings are on, because torch does not say whether they were.
    """
    global _inside, _validates
    kind = torch.distributions.Distribution
    with _lock:
        if not _inside:
            _validates, kind._validate_args = kind._validate_args, False
            warn_of_slow_vmap(False)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                kind._validate_args = _validates
                warn_of_slow_vmap(True)


def called(what: str, function: Callable[..., Any]) -> str:
    """Return what a user's function is, with its name where that is another."""
    name = getattr(function, "__name__", what)
    return what if name in (what, "<lambda>") else f"{what} ({name})"


def place_of(function: Callable[..., Any]) -> str:
    """Return file and first line of a user's function, empty if it has none."""
    code = getattr(function, "__code__", None)
    return "" if code is None else f" ({place_in(code.co_filename, code.co_firstlineno)})"
