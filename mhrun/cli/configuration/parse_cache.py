"""Keeps what OmegaConf parses: the same references come back in every method and every job of a sweep."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from omegaconf import _utils, base, grammar_parser

_KEPT, _LONGEST = 4096, 300  # texts, and characters of one: the tree of a long text takes megabytes


def keep_parse_trees() -> None:
    """Let this process parse each text with ``${...}`` once: that takes half of the time of a composition.

    OmegaConf reads parse trees and does not change them.
    """
    original = grammar_parser.parse
    remembered = lru_cache(maxsize=_KEPT)(original)

    def kept(value: str, *args: str, **settings: str) -> Any:
        return (remembered if len(value) <= _LONGEST else original)(value, *args, **settings)

    for module in (base, _utils):
        if getattr(module, "parse", None) is original:
            module.parse = kept  # type: ignore[attr-defined]
