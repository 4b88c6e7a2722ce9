"""Matrix products of BLAS in one thread, whose numbers do not depend on the machine's cores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController


class _Limit:
    """The number of threads of BLAS's matrix products, which all threads of the process share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.before: list[tuple[Any, int]] = []


_limit = _Limit()


@contextmanager
def single_threaded_products() -> Iterator[None]:
    """Let matrix products have one thread; the last of several Python threads restores what the first found.

    Rounding depends on the number of threads. On the command line products have one anyway, and this takes two
    microseconds; elsewhere it takes tens of them.
    """
    with _limit.lock:
        if not _limit.users:
            _limit.before = [(library, library.num_threads) for library in _blas().lib_controllers]
            for library, threads in _limit.before:
                if threads != 1:
                    _set_threads(library, 1)
        _limit.users += 1
    try:
        yield
    finally:
        with _limit.lock:
            _limit.users -= 1
            if not _limit.users:
                for library, threads in _limit.before:
                    if threads != 1:
                        _set_threads(library, threads)


def _set_threads(library: Any, threads: int) -> None:
    """Set the number of threads of a library, from whatever thread of Python.

    `set_num_threads` of threadpoolctl does nothing in all threads but the first that called it, as their limits would
    overwrite one another; those of this module share `_limit`.
    """
    getattr(library, "_real_set_num_threads", library.set_num_threads)(threads)


@lru_cache(maxsize=1)
def _blas() -> ThreadpoolController:
    import scipy.linalg.cython_blas  # noqa: F401  # so that its library is loaded

    return ThreadpoolController().select(user_api="blas")
