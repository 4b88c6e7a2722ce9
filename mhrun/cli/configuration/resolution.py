"""Bounds on ``${...}``: a few lines of a configuration could otherwise take all memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import Container, Node
from omegaconf.resolvers import oc

from mhrun.errors import UserError

MOST_RESOLVED = 10_000
"""Most references that a configuration may resolve, with those in what they lead to; mhrun's own have some hundreds.

Twenty values of a list or a group count as one, and so do a thousand characters: they take about as long.
"""
_VALUES, _CHARACTERS = 20, 1000  # characters, or values, that count as a reference
_ENVIRONMENT = ("MHRUN_", "SLURM_")
_PLACES = frozenset(("HOME", "SCRATCH", "TMPDIR", "WORK"))
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NO_DEFAULT = object()


class _TooManyError(Exception):
    """Too many references."""


@contextmanager
def bounded(most: int = MOST_RESOLVED) -> Iterator[None]:
    """Count resolved references, and stop at a limit.

    ``a1: ${a0}${a0}``, ``a2: ${a1}${a1}`` and so on double with each line.

    Raises:
        UserError: more than `most` references.
    """
    budget = float(most)
    original = Container.resolve_parse_tree

    def counted(self: Container, *args: Any, **kwargs: Any) -> Any:
        nonlocal budget
        budget -= 1
        if budget >= 0:
            resolved = original(self, *args, **kwargs)
            budget -= _size(resolved)
        if budget < 0:
            raise _TooManyError
        return resolved

    Container.resolve_parse_tree = counted  # type: ignore[method-assign]
    try:
        yield
    except Exception as error:
        if budget < 0:  # OmegaConf appends lines to the message
            raise UserError(
                f"the references (${{...}}) lead to more than {most:,} others; look for those that double."
            ) from error
        raise
    finally:
        Container.resolve_parse_tree = original  # type: ignore[method-assign]


def _size(resolved: Any) -> float:
    """Return the number of references as which a resolved value counts."""
    value = resolved._value() if isinstance(resolved, Node) else resolved
    if isinstance(value, str):
        return len(value) / _CHARACTERS
    if isinstance(value, Mapping):
        return sum(1 / _VALUES + _size(member) for member in value.values())
    if isinstance(value, list | tuple):
        return (
            sum(1 / _VALUES + _size(member) for member in value)
            if isinstance(resolved, Container)
            else len(value) / 1000
        )
    return 0.0


def environment(name: str, default: Any = _NO_DEFAULT) -> Any:
    """Return an environment variable; replaces OmegaConf's ``oc.env``.

    Configurations are written into the folder of a run and onto its page. Therefore only folders and variables of mhrun
    and SLURM are allowed: MHRUN_*, SLURM_*, HOME, SCRATCH, TMPDIR, WORK. A whole number of SLURM's is returned as one,
    such as the task of an array, which may be a seed.

    Raises:
        UserError: another variable, or one without a value or a default.
    """
    name = str(name)  # a number where a configuration has one
    if not name.startswith(_ENVIRONMENT) and name not in _PLACES:
        raise UserError(
            f"oc.env: {name} is none of MHRUN_*, SLURM_*, {', '.join(sorted(_PLACES))}; reports would show it. "
            "Write its value."
        )
    if name in os.environ:
        return _value(name, os.environ[name])
    if default is _NO_DEFAULT:
        raise UserError(f"oc.env: {name} is not set; set it, or give a default: ${{oc.env:{name},VALUE}}.")
    return None if default is None else _value(name, str(default))


def _value(name: str, text: str) -> int | str:
    return int(text) if name.startswith("SLURM_") and _WHOLE.fullmatch(text) else text


def decoded(text: Any, *, _parent_: Any, _node_: Any) -> Any:
    """Return what a text means; replaces OmegaConf's ``oc.decode``, which refuses the numbers of `environment`."""
    return text if isinstance(text, int) else oc.decode(text, _parent_, _node_)


def name_part(place: int, *, _parent_: Any) -> str:
    """Return a word of the name of a setting's method; words are separated by underscores.

    ``${name_part:-1}`` in the method ``sgld_heart`` is ``heart``, so that methods that differ only in their data are
    declared once.

    Raises:
        UserError: the setting does not belong to a method, or the method's name has fewer words.
    """
    node = _parent_
    while node is not None and (above := node._get_parent()) is not None and above._key() != "methods":
        node = above
    if node is None or node._get_parent() is None:
        raise UserError("name_part is for the settings of a method.")
    words = str(node._key()).split("_")
    if not isinstance(place, int) or not -len(words) <= place < len(words):
        raise UserError(f"name_part: the name {node._key()} has no word {place}; it has {len(words)}.")
    return words[place]
