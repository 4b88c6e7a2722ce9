"""Refuses top-level settings of the command line and of experiment files that nothing reads."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhrun.cli.configuration.overrides import parsed
from mhrun.errors import UserError, nearest
from mhrun.messages import say
from mhrun.paths import CONF, EXPERIMENTS, user_folders
from mhrun.yaml_file import texts_of

# ${key}, ${key.more}, ${key[0]} and ${oc.select:key}; a name before a colon is a resolver
_REFERENCE = re.compile(r"\$\{\s*(?:oc\.select:\s*)?([A-Za-z_]\w*)\s*(?=[.\[},])")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_CODE = (".py", ".yaml", ".md", ".html", ".jinja", ".j2")
_SIMILARITY = 0.7  # similarity of a name, above which another is taken for a misspelling of it
_OF_REPORTS = ("metrics", "figures", "tables", "notes", "finding")
_ADDS = (OverrideType.ADD, OverrideType.FORCE_ADD)


Compose = Callable[[Sequence[str]], DictConfig]


def check_read(overrides: Sequence[str], config: DictConfig, compose: Compose) -> None:
    """Refuse a scale where the experiment has none, and settings at the top that nothing reads.

    Those of files are checked too: see `_check_files`.

    Args:
        overrides: of the command line.
        config: the composed configuration, not resolved.
        compose: composes overrides, with the user's folders.

    Raises:
        UserError: there is such an override.
    """
    unresolved: Any = OmegaConf.to_container(config, resolve=False)
    references = references_of(unresolved)
    _check_temperature(overrides, unresolved, references)
    added: dict[str, list[tuple[str, str]]] = {}  # node at the top -> overrides, each with its key
    for text, override in zip(overrides, parsed(overrides), strict=True):
        scaled = bool(unresolved.get("scales")) or "scale" in references
        if override.key_or_group == "scale" and not override.is_delete() and not scaled:
            raise UserError(
                f"{text}: this experiment has no scales; leave it out, or give steps= and warmup= instead."
            )
        key = (override.package or override.key_or_group).replace("/", ".").removeprefix("_global_.")
        top = key.partition(".")[0]
        if override.type in _ADDS and top in unresolved and top not in {*_settings(), *references, "hydra"}:
            added.setdefault(top, []).append((text, key))
    for top, of_top in added.items():
        if top not in _without([text for text, _ in of_top], overrides, compose):
            text, key = of_top[0]
            raise UserError(
                f"{text} sets '{top}', which nothing reads.{hint(text, key, unresolved)} "
                "mhrun NAME --cfg job shows all settings."
            )
    _check_files(overrides, unresolved, references, compose)


def _check_temperature(overrides: Sequence[str], unresolved: Mapping[str, Any], references: set[str]) -> None:
    """Refuse a temperature that no method reads: draws at T = 1 would be mistaken for draws at T.

    Experiments with report functions are exempt: these may read it.

    Raises:
        UserError: there is such an override.
    """
    own = unresolved.get("report") or {}
    if "temperature" in references or any(own.get(name) for name in _OF_REPORTS):
        return
    # In forms that references_of does not know, such as ${..temperature}
    if any("${" in text and "temperature" in text for text in texts_of(unresolved)):
        return
    for text, override in zip(overrides, parsed(overrides), strict=True):
        if override.key_or_group == "temperature" and not override.is_delete():
            methods = list(unresolved.get("methods") or {})
            raise UserError(
                f"{text}: no method of this experiment ({', '.join(methods)}) reads it: each has its own temperature, "
                "which is 1 unless the method sets it. Leave it out, or add a method that reads it, such as "
                "+method@methods.mint=mint."
            )


def _check_files(
    overrides: Sequence[str], unresolved: Mapping[str, Any], references: set[str], compose: Compose
) -> None:
    """Refuse a setting of an experiment file that nothing reads if it is misspelt; warn of any other.

    A setting is read by the program, by a ${...} of any file of its folder, which a base may be made for, or by the
    code of the report and of the parts, where its name is quoted.

    Raises:
        UserError: an unread setting whose name is nearly that of one that is read.
    """
    settings = _settings()
    unread = [str(key) for key in unresolved if key not in settings | references | {"hydra"}]
    if not unread:
        return
    experiment_overrides = [override for override in overrides if override.startswith("experiment=")]
    with suppress(HydraException, OmegaConfBaseException, UserError):
        references = references | references_of(
            OmegaConf.to_container(compose(experiment_overrides), resolve=False)
        )
    if unread := [key for key in unread if key not in references]:
        code = "\n".join(_code_of(unresolved))
        unread = [key for key in unread if not _is_named(key, code)]
    for key in unread:
        near = difflib.get_close_matches(key, sorted(settings | references), 1, _SIMILARITY)
        if near:
            raise UserError(f"the experiment sets '{key}', which nothing reads. Did you mean '{near[0]}'?")
    if unread:
        _warn(", ".join(unread))


@cache
def _warn(settings: str) -> None:
    """Print once that nothing reads some settings, however many jobs of a sweep have them."""
    say(f"the experiment sets {settings}, which nothing reads.")


def _is_named(key: str, code: str) -> bool:
    """Return whether a setting is named in code, a template or a configuration: quoted, ``config.key`` or ${key}."""
    name = re.escape(key)
    return (
        re.search(rf"""(["']){name}\1|\bconfig\.{name}\b|\$\{{[^}}]*(?<![\w.]){name}\b""", code) is not None
    )


def _code_of(unresolved: Any) -> Iterator[str]:
    """Yield the texts of code and configurations: of bundled experiments, of the project, or of a package."""
    project = [
        path
        for user_folder in user_folders()
        for path in (user_folder, *(init.parent for init in user_folder.glob("*/__init__.py")))
    ]
    places = [EXPERIMENTS, *EXPERIMENTS.iterdir(), *project, *_packages(unresolved)]
    roots = [CONF, *(path / "conf" for path in places), *project]
    places += [group for root in roots for group in (root / "experiment", *(root / "experiment").glob("*"))]
    for folder in places:
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.suffix in _CODE and path.is_file():
                with suppress(OSError, UnicodeError):
                    yield path.read_text(encoding="utf-8")


def _packages(unresolved: Any) -> Iterator[Path]:
    """Yield the folders of installed packages that a configuration names, without importing them."""
    for top in sorted({text.partition(".")[0] for text in texts_of(unresolved) if _DOTTED.fullmatch(text)}):
        spec = None
        with suppress(ImportError, ValueError, AttributeError):
            spec = find_spec(top)
        if top != "mhrun" and spec is not None and spec.submodule_search_locations:
            for place in map(Path, spec.submodule_search_locations):
                yield place
                yield from (init.parent for init in place.glob("*/__init__.py"))


@cache
def _settings() -> frozenset[str]:
    """Return the settings that every experiment has, with what a run's configuration has besides."""
    return frozenset(
        {*yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8")), "reproduces", "sources"}
    )


def references_of(node: Any) -> set[str]:
    """Return the nodes at the top that a ${...} anywhere in a configuration refers to."""
    return {name for text in texts_of(node) for name in _REFERENCE.findall(text)}


def _without(removed: Sequence[str], overrides: Sequence[str], compose: Compose) -> set[str]:
    """Return the nodes at the top without some overrides; if that fails, the nodes that these set."""
    try:
        return set(map(str, compose([override for override in overrides if override not in removed])))
    except (HydraException, OmegaConfBaseException, UserError):  # others build on it
        return {override.lstrip("+").partition("=")[0].partition(".")[0] for override in removed}


def hint(override: str, key: str, unresolved: Mapping[str, Any]) -> str:
    """Return the suggestion for an override: a part that takes a setting of this name, or a similar name at the top."""
    top, dot, rest = key.partition(".")
    parts = {path: takes for path, takes in taken_settings(unresolved) if not path.startswith(("hydra", top))}
    paths = [path for path, takes in parts.items() if top in takes]
    if paths and key == top and (CONF / top).is_dir():
        return f" Did you mean '{top}@{paths[0]}.{top}={override.partition('=')[2]}'?"
    if paths:
        return f" Did you mean '+{paths[0]}.{top}{dot}{rest}'?"
    return nearest(top, [str(name) for name in unresolved if name not in (top, "hydra")])


def taken_settings(node: Any, path: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield each part of a configuration, and the settings that it takes."""
    from mhrun.build import trusted_object

    if not isinstance(node, Mapping):
        return
    if isinstance(node.get("_target_"), str):
        with suppress(UserError, ValueError, TypeError):  # the run itself reports the mistake
            yield path, set(inspect.signature(trusted_object(node["_target_"])).parameters)
    for key, value in node.items():
        yield from taken_settings(value, f"{path}.{key}".lstrip("."))
