"""Compilation of pieces."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from mhrun.native.processor import use_long_vectors
from mhrun.ownership import is_own_module
from mhrun.paths import PACKAGE, cache_dir

Piece = Callable[..., Any]
F = TypeVar("F", bound=Piece)

_PIECES: list[Piece] = []
_CALLED: set[Piece] = set()
_NARROW: dict[Piece, Piece] = {}
_registered = 0
# Sums may be re-associated, which lets them run in vector lanes; NaN and infinity keep their meaning.
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}


def piece(function: F) -> F:
    """Mark a function as a piece of a compiled loop; it stays an ordinary function."""
    _PIECES.append(function)
    return function


def routine(function: F) -> F:
    """Mark a function as a piece that is called and not inlined, because it has loops; it is compiled once.

    It must not sum floating-point numbers: a process that compiles a loop calls the routine's own machine code, and one
    that loads the loop from the cache a copy in it that was optimised again, with sums in another order.
    """
    _CALLED.add(function)
    return piece(function)


def narrow_form(wide: Piece) -> Callable[[F], F]:
    """Mark a function as the form of the piece `wide` where its first argument is an array of float32."""

    def marked(function: F) -> F:
        _NARROW[wide] = function
        return piece(function)

    return marked


@lru_cache(maxsize=1)
def available() -> bool:
    """Return whether numba is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


def _code_cache(function: Piece) -> str:
    # numba's cache key is the outer function alone. A folder per state of the pieces' sources ensures that a changed
    # piece is never taken from an older build.
    files = {Path(inspect.getfile(part)) for part in _parts(function)}
    digest = hashlib.blake2b(digest_size=8)
    shared = {path for part in ("native", "compiled") for path in (PACKAGE / part).glob("*.py")}
    for path in sorted(files | shared):
        digest.update(path.read_bytes())
    return str(cache_dir() / "native" / digest.hexdigest())


def _called(function: Piece) -> list[Piece]:
    """Return the pieces that a function calls, from its closure and the globals of its module."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    pieces = set(_PIECES)
    candidates = [function.__globals__.get(name) for name in function.__code__.co_names]
    return [part for part in cells if callable(part)] + [part for part in candidates if _in(part, pieces)]


def _in(part: Any, pieces: set[Piece]) -> bool:
    return isinstance(part, FunctionType) and part in pieces


def _parts(function: Piece) -> list[Piece]:
    return [function, *(part for piece in _called(function) for part in _parts(piece))]


def _is_bundled(function: Piece) -> bool:
    return all(is_own_module(part.__module__) for part in _parts(function))


def compiled(function: F) -> F:
    """Compile `function`, whose closure holds pieces.

    The machine code is cached on disk if every piece belongs to this package. A user's pieces are compiled again in
    each process, because their sources may change in ways that no cache key covers.
    """
    global _registered
    import numba
    import numpy as np
    from numba.extending import overload, register_jitable

    use_long_vectors()
    # The key of numba's cache is a pickle, in which equal strings are one only if they are the same object. NumPy's
    # name is another object where torch was imported first: such a process would find nothing of the others'.
    np.__name__ = sys.intern(np.__name__)
    # Inlined, because a call in a loop prevents vectorisation, which costs a factor of four.
    while _registered < len(_PIECES):
        part = _PIECES[_registered]
        how: dict[str, Any] = {"fastmath": _FAST_MATH} if part in _CALLED else {"forceinline": True}
        how["no_cfunc_wrapper"] = True  # nothing calls a piece from C; wrappers take a fifteenth of the time
        if part in _NARROW:
            overload(part, jit_options=how, strict=False)(_by_type(part, _NARROW[part]))
        else:
            register_jitable(**how)(part)
        _registered += 1
    options = {"nogil": True, "fastmath": _FAST_MATH, "error_model": "numpy", "cache": _is_bundled(function)}
    before = numba.config.CACHE_DIR
    try:
        # The cache folder is fixed when the function is wrapped; other users of numba in this process keep theirs.
        numba.config.CACHE_DIR = _code_cache(function)
        return numba.njit(**options)(function)
    except RuntimeError:  # no writable folder: compile without a cache
        return numba.njit(**(options | {"cache": False}))(function)
    finally:
        numba.config.CACHE_DIR = before


def compiled_once(make: Callable[..., Piece], *pieces: Piece) -> Piece:
    """Return ``make(*pieces)`` as machine code; a process compiles the same pieces once."""
    return _machine_code(make, *pieces)


@cache
def _machine_code(make: Callable[..., Piece], *pieces: Piece) -> Piece:
    return compiled(make(*pieces))


@cache
def piece_once(make: Callable[..., Piece], *pieces: Piece) -> Piece:
    """Return ``make(*pieces)`` as a piece of a larger loop; the same pieces give the same piece."""
    return piece(make(*pieces))


def _by_type(wide: Piece, narrow: Piece) -> Piece:
    def chosen(out: Any, *rest: Any) -> Piece:
        del rest
        return narrow if str(out.dtype) == "float32" else wide

    return chosen


@lru_cache(maxsize=4)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:  # a forked child needs its own pool
    del process
    return ThreadPoolExecutor(threads, thread_name_prefix="mhrun-native")


def over_chains(block: Piece, chains: int, threads: int, *args: object, own: Callable[[int], object]) -> None:
    """Call ``block(first, last, own(part), *args)`` on contiguous parts of the chains, in parallel.

    `own` makes the workspace of each part.
    """
    parts = max(1, min(threads, chains))
    if parts == 1:
        block(0, chains, own(0), *args)
        return
    edges = [chains * i // parts for i in range(parts + 1)]
    pool = _pool(parts, os.getpid())
    jobs = [pool.submit(block, *ends, own(part), *args) for part, ends in enumerate(pairwise(edges))]
    for job in jobs:
        job.result()
