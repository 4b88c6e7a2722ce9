"""Refuses words of the command line that set what nothing reads."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import yaml
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhrun.cli.words import parsed
from mhrun.errors import UserError, nearest
from mhrun.paths import CONF

# ${key}, ${key.more}, ${key[0]} and ${oc.select:key}; a name before a colon is a resolver
_REFERENCE = re.compile(r"\$\{\s*(?:oc\.select:\s*)?([A-Za-z_]\w*)\s*(?=[.\[},])")
_ADDS = (OverrideType.ADD, OverrideType.FORCE_ADD)


Compose = Callable[[Sequence[str]], DictConfig]


def check_read(words: Sequence[str], config: DictConfig, compose: Compose) -> None:
    """Refuse a scale where the experiment has none, and settings added by `words` that nothing reads.

    Settings of files are not checked: a node of the user's may be read by a report.

    Args:
        words: overrides.
        config: what they were composed to, not resolved.
        compose: composes overrides, with the user's folders.

    Raises:
        UserError: such a word.
    """
    written: Any = OmegaConf.to_container(config, resolve=False)
    read = _references(written)
    added: dict[str, list[tuple[str, str]]] = {}  # node at the top -> words, each with its key
    for word, override in zip(words, parsed(words), strict=True):
        scaled = bool(written.get("scales")) or "scale" in read
        if override.key_or_group == "scale" and not override.is_delete() and not scaled:
            raise UserError(
                f"{word}: this experiment has no scales; leave it out, or give steps= and warmup= instead."
            )
        key = (override.package or override.key_or_group).replace("/", ".").removeprefix("_global_.")
        top = key.partition(".")[0]
        if override.type in _ADDS and top in written and top not in {*_settings(), *read, "hydra"}:
            added.setdefault(top, []).append((word, key))
    for top, of_top in added.items():
        if top not in _without([word for word, _ in of_top], words, compose):
            word, key = of_top[0]
            raise UserError(
                f"{word} sets '{top}', which nothing reads.{_hint(word, key, written)} "
                "mhrun NAME --cfg job shows all settings."
            )


@cache
def _settings() -> frozenset[str]:
    """Return the settings that every experiment has."""
    return frozenset({*yaml.safe_load((CONF / "config.yaml").read_text()), "reproduces"})


def _references(node: Any) -> set[str]:
    """Return the nodes at the top that a ${...} anywhere in a configuration refers to."""
    return {name for text in _texts(node) for name in _REFERENCE.findall(text)}


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        for value in node.values():
            yield from _texts(value)
    elif isinstance(node, list):
        for value in node:
            yield from _texts(value)
    elif isinstance(node, str) and "${" in node:
        yield node


def _without(some: Sequence[str], words: Sequence[str], compose: Compose) -> set[str]:
    """Return the nodes at the top of the configuration without some of the words, or those words' where it has none."""
    try:
        return set(map(str, compose([word for word in words if word not in some])))
    except (HydraException, OmegaConfBaseException, UserError):  # others build on it
        return {word.lstrip("+").partition("=")[0].partition(".")[0] for word in some}


def _hint(word: str, key: str, written: Mapping[str, Any]) -> str:
    """Return the suggestion for a word: a part that takes a setting of this name, or a similar name at the top."""
    top, dot, rest = key.partition(".")
    parts = {path: takes for path, takes in _takes(written) if not path.startswith(("hydra", top))}
    there = [path for path, takes in parts.items() if top in takes]
    if there and key == top and (CONF / top).is_dir():
        return f" Did you mean '{top}@{there[0]}.{top}={word.partition('=')[2]}'?"
    if there:
        return f" Did you mean '+{there[0]}.{top}{dot}{rest}'?"
    return nearest(top, [str(name) for name in written if name not in (top, "hydra")])


def _takes(node: Any, path: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield each part of a configuration, and the settings that it takes."""
    from mhrun.build import trusted_object

    if not isinstance(node, Mapping):
        return
    if isinstance(node.get("_target_"), str):
        with suppress(UserError, ValueError, TypeError):  # the run itself says what is wrong with it
            yield path, set(inspect.signature(trusted_object(node["_target_"])).parameters)
    for key, value in node.items():
        yield from _takes(value, f"{path}.{key}".lstrip("."))
