"""Calls with a keyword that a function does not have, in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

from mhrun.errors import UserError, nearest

P = ParamSpec("P")
R = TypeVar("R")


def known_keywords(
    other_names: Mapping[str, str] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of a function that names the nearest argument where it is called with an unknown keyword.

    Args:
        other_names: the names that other libraries have for an argument, each with what to give here.

    Raises:
        UserError: the function was called with a keyword that it does not have.
    """
    names = other_names or {}

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = list(inspect.signature(function).parameters)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    advice = f" {names[name]}" if name in names else nearest(name, known)
                    raise UserError(f"{function.__name__} has no argument '{name}'.{advice}")
            return function(*args, **kwargs)

        return checked

    return decorate
