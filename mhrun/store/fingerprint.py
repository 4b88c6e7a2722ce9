"""What makes two calls from Python the same call."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np


def fingerprint(*things: Any) -> str:
    """Return a digest of objects by what they hold: numbers, arrays, functions' code, objects' attributes.

    The same program gives the same digest in another process; it is not meant to survive other versions.
    """
    digest = hashlib.blake2b(digest_size=12)
    seen: set[int] = set()

    def take(thing: Any) -> None:
        digest.update(type(thing).__qualname__.encode())
        if thing is None or isinstance(thing, str | int | float):
            digest.update(repr(thing).encode())
        elif hasattr(thing, "__array__"):
            array = np.asarray(thing.detach().cpu() if hasattr(thing, "detach") else thing)
            digest.update(f"{array.dtype}{array.shape}".encode())
            # As they lie, for they may be mapped and larger than memory.
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        elif isinstance(thing, Mapping):
            take(list(thing.items()))
        elif isinstance(thing, list | tuple | set | frozenset):
            for item in sorted(thing, key=repr) if isinstance(thing, set | frozenset) else thing:
                take(item)
        elif id(thing) not in seen:  # an object may hold itself
            seen.add(id(thing))
            code = getattr(thing, "__code__", None)
            if code is not None:
                digest.update(code.co_code)
                take([c for c in code.co_consts if isinstance(c, str | int | float)])
                take([cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()])
            else:
                told = getattr(thing, "__dict__", None)
                # What a cached property keeps is no setting: it is there after the first use.
                take(repr(thing) if told is None else {k: v for k, v in told.items() if not _kept(thing, k)})

    take(things)
    return digest.hexdigest()


def _kept(thing: Any, name: str) -> bool:
    return isinstance(getattr(type(thing), name, None), cached_property)
