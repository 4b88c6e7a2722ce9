"""From pieces to machine code."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mhrun.paths import PACKAGE, cache_dir

Piece = Callable[..., Any]
F = TypeVar("F", bound=Piece)

_PIECES: list[Piece] = []
_CALLED: set[Piece] = set()
_registered = 0
# Sums may be re-associated, which lets them run in vector lanes; NaN and infinity keep their meaning.
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}


class NativeModel(NamedTuple):
    """A model's pieces. `args` is a tuple of arrays and numbers, handed to each piece as it is."""

    args: tuple[Any, ...]
    log_prior: Piece  # (args, theta (D,)) -> float
    difference: Piece  # (args, index, m, origin, candidate) -> sum of d_i, sum of d_i^2 over the batch
    moments: Piece  # (args, index, m, theta) -> sum of l_i, sum of l_i^2 over the batch
    total: Piece  # (args, theta) -> sum of l_i over all data
    gradient: Piece  # (args, index, m, theta, out (D,)): sum over the batch of the gradient of l_i
    prior_gradient: Piece  # (args, theta, out (D,))
    # For minibatches that grow; without these two they run in torch.
    terms: Piece | None = None  # (args, index, m, origin, candidate, out (m,)): d_i of each datum
    full_pass_stats: Piece | None = (
        None  # (args, origin, candidate) -> sums over all data of d_i, d_i^2; largest |d_i|
    )
    sums: NativeSums | None = None


class NativeSums(NamedTuple):
    """Sums over data as weighted sums over a fixed set of nodes, for models whose data allow it.

    A sum over a minibatch, or over all data, of any smooth function of l is that of its values at the nodes with the
    minibatch's weights: log-likelihood, gradient and the square of a difference all come from one pass over the nodes.
    """

    size: int  # how many nodes
    whole: Any  # (size,) the weights of all data
    gather: Piece  # (args, index, m, out (size,)): the weights of a minibatch
    # (args, weights (size,), theta, grad (D,), values (size,)) -> the weighted sum; grad: its gradient; values: l
    score: Piece


class NativePairing(NamedTuple):
    """A pairing, as one of the scoring modes of the Metropolis-Hastings loops."""

    mode: int  # SHARED, STORED, FULL or GROWING
    m: int | None  # minibatch size; None for all data, or as many as the rule wants


SHARED, STORED, FULL, GROWING = 0, 1, 2, 3


class NativeTest(NamedTuple):
    """The pieces of a rule that grows its minibatch: a sequential test.

    `begin` returns some numbers of the step, which `judge` receives as `params`; the fourth is the stage to begin at.
    The verdict is ACCEPT, REJECT or UNDECIDED, and at the last stage one of the first two. With a pilot the first
    `pilot` data are read beforehand, `begin` receives the mean and the sample variance of their terms, and the
    stages read the data that follow; when those are all that there are, the pilot's join them.
    """

    args: tuple[Any, ...]
    sizes: Sequence[int]  # data at each stage, increasing, n at most
    wants_full_pass_stats: bool  # whether `begin` receives statistics of all data
    begin: Piece  # (args, n, scale, offset, mean, var, largest |d_i| of all data, key, step, chain) -> params
    judge: Piece  # (args, params, stage from 0 on, size, n, scale, offset, mean, var so far) -> verdict
    pilot: int = 0  # data read before the first stage


UNDECIDED, REJECT, ACCEPT = -1, 0, 1


class NativeDecision(NamedTuple):
    """The piece of a rule that decides on a log-ratio whose noise is known: exchanges of replicas ask for it."""

    args: tuple[Any, ...]
    decide: Piece  # (args, log_ratio, its noise's variance, key, step, chain) -> whether to accept


def symmetric(args: Any, origin: Any, candidate: Any) -> Any:
    """Return 0: the log-ratio of the densities of a symmetric proposal."""
    return 0.0


class NativeProposal(NamedTuple):
    """A proposal's pieces."""

    args: tuple[Any, ...]
    propose: Piece  # (args, theta, step_size, key, step, chain, out)
    # (args, origin, candidate) -> log q(candidate -> origin) - log q(origin -> candidate)
    log_ratio: Piece = symmetric


class NativeDynamics(NamedTuple):
    """A dynamics' piece, in place:

    ``(args, theta (D,), grad (D,), aux (A, D), own (S,), step_size, noise_temperature, key, step, chain)``. `aux` names
    what the rows of the array are in `State.aux`, and `scalars` what has one number for each chain there. Theta may be
    float32: numbers that meet it in a loop should have its type, as ``theta.dtype.type(x)``, or the loop is slow.
    """  # noqa: D415

    args: tuple[Any, ...]
    move: Piece
    aux: tuple[str, ...]
    scalars: tuple[str, ...] = ()


def native_form(part: Any, form: str, *plain: str) -> Callable[..., Any] | None:
    """Return the method `form` of a part, if it was written by whoever wrote its methods `plain`.

    A subclass that changes what a method does has not changed its compiled form: then there is none.
    """

    def depth(name: str) -> float:
        return next((i for i, owner in enumerate(type(part).__mro__) if name in vars(owner)), math.inf)

    if depth(form) == math.inf or any(depth(name) < depth(form) for name in plain):
        return None
    found: Callable[..., Any] = getattr(part, form)
    return found


def piece(function: F) -> F:
    """Mark a function as part of a fused loop; it stays an ordinary function."""
    _PIECES.append(function)
    return function


def routine(function: F) -> F:
    """Mark a function as a piece that is called, not inlined: one with loops of its own, which compiles once."""
    _CALLED.add(function)
    return piece(function)


piece(symmetric)


@lru_cache(maxsize=1)
def available() -> bool:
    """Say whether numba is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


def _code_cache(function: Piece) -> str:
    # numba keys its cache by the outer function alone. A folder per state of the sources that its pieces
    # come from makes sure that a changed piece is never run from an older build.
    files = {Path(inspect.getfile(part)) for part in _parts(function)}
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(files | set((PACKAGE / "native").glob("*.py"))):
        digest.update(path.read_bytes())
    return str(cache_dir() / "native" / digest.hexdigest())


def _closure(function: Piece) -> list[Piece]:
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return [part for part in cells if callable(part)]


def _parts(function: Piece) -> list[Piece]:
    return [function, *(part for piece in _closure(function) for part in _parts(piece))]


def _is_ours(function: Piece) -> bool:
    return all(part.__module__.split(".")[0] == "mhrun" for part in _parts(function))


def compiled(function: F) -> F:
    """Compile `function`, whose closure holds pieces.

    The machine code is kept on disk when every piece comes from this package; a user's own pieces
    are compiled anew in each process, as their sources may change in ways that no cache key sees.
    """
    global _registered
    import numba
    from numba.extending import register_jitable

    # Inlined, as a call left in a loop keeps it from being vectorised, which costs a factor of four.
    while _registered < len(_PIECES):
        part = _PIECES[_registered]
        register_jitable(**({"fastmath": _FAST_MATH} if part in _CALLED else {"forceinline": True}))(part)
        _registered += 1
    options = {"nogil": True, "fastmath": _FAST_MATH, "error_model": "numpy", "cache": _is_ours(function)}
    before = numba.config.CACHE_DIR
    try:
        # The place is fixed when the function is wrapped; other users of numba in this process keep theirs.
        numba.config.CACHE_DIR = _code_cache(function)
        return numba.njit(**options)(function)
    except RuntimeError:  # no folder can be written: compile, and forget it afterwards
        return numba.njit(**(options | {"cache": False}))(function)
    finally:
        numba.config.CACHE_DIR = before


@lru_cache(maxsize=4)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:  # a forked child needs a pool of its own
    del process
    return ThreadPoolExecutor(threads, thread_name_prefix="mhrun-native")


def over_chains(block: Piece, chains: int, threads: int, *args: object, own: Callable[[int], object]) -> None:
    """Call ``block(first, last, own(part), *args)`` on contiguous parts of the chains, in parallel.

    `own` makes what each part works in alone.
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
