"""Refuses overrides of ``mhrun check`` that nothing reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from mhrun.cli.checked import PARTS, SETTINGS, WHOLE
from mhrun.cli.configuration.overrides import parsed
from mhrun.cli.configuration.unread import hint, references_of, taken_settings
from mhrun.errors import UserError, nearest
from mhrun.messages import listed
from mhrun.paths import CONF

_OF_A_METHOD = ("kernel", "target")  # what is read of a method


def check_class_overrides(name: str, kind: str, takes: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuse overrides that give a class, checked by its dotted name, settings in the form of a named part.

    Args:
        name: the dotted name of the class.
        kind: of the part that it is.
        takes: the parameters of the class.
        overrides: the others of the command line.

    Raises:
        UserError: ``+dynamics.sign=-1`` or ``+sign=-1`` in place of ``sign=-1``, a setting that neither the class nor
            the checks have, or another part of the same kind.
    """
    short = name.rpartition(".")[2]
    its_settings = has(name, takes)
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        group, dot, setting = key.partition(".")
        if group == kind and not dot:
            raise UserError(f"{override}: {name} is the {kind} that is checked; leave out one of them.")
        if group.partition("@")[0] in PARTS and group != kind and kind in WHOLE:
            raise UserError(
                f"{override} sets '{group}', which nothing reads: only the {kind} {short} is checked."
            )
        bare = setting if group == kind else key
        if bare in takes and bare != override.partition("=")[0]:
            raise UserError(
                f"{override}: a class that is given by name takes its settings bare: {bare}={value or 'VALUE'}."
            )
        if group == kind:
            raise UserError(
                f"{override} sets {setting!r}, which nothing reads.{nearest(setting, takes)} {its_settings}"
                f"{f', given bare: {takes[0]}=VALUE' if takes else ''}."
            )
        known = (*takes, *SETTINGS)
        if override == f"{key}={value}" and key.isidentifier() and key not in (*known, *PARTS, *_others()):
            raise UserError(
                f"There is no setting '{key}'.{nearest(key, known)} {its_settings}; check has {listed(SETTINGS)}."
            )


def has(name: str, takes: Sequence[str]) -> str:
    """Return what a class, given by its dotted name, takes."""
    return f"{name.rpartition('.')[2]} takes {listed(takes) or 'no settings'}"


def check_overrides_read(overrides: Sequence[str], config: DictConfig, of_class: str) -> None:
    """Refuse overrides that set what neither the checks nor the part under test read.

    Args:
        overrides: of the command line.
        config: the composed configuration with the part under test, not resolved.
        of_class: what a class that is given by name takes; empty for parts that are chosen by group.

    Raises:
        UserError: there is such an override.
    """
    unresolved: Any = OmegaConf.to_container(config, resolve=False)
    references = references_of(unresolved)
    whole = next((part for part in WHOLE if unresolved.get(part)), None)
    read = {whole} if whole else set(PARTS)
    for text, override in zip(overrides, parsed(overrides), strict=True):
        key = (override.package or override.key_or_group).replace("/", ".").removeprefix("_global_.")
        top, _, rest = key.partition(".")
        if key == "m" and whole in ("kernel", "method") and "m" not in references_of(unresolved[whole]):
            raise UserError(
                f"{text} sets 'm', which the {whole} does not read.{_place_of_m(unresolved, whole)}"
            )
        if override.is_delete() or top == "hydra" or top in SETTINGS or _refers(unresolved, key):
            continue
        if top in PARTS:
            if top not in read:
                raise UserError(
                    f"{text} sets '{top}', which nothing reads: of these parts only the {whole} is checked."
                )
            of_method = rest.partition(".")[0]
            if top == "method" and rest and of_method not in _OF_A_METHOD:
                raise UserError(
                    f"{text} sets '{top}.{of_method}', which nothing reads: of a method its kernel is checked, at "
                    "step_size= and with chains= of the checks."
                )
            if top != "method" and "_target_" not in unresolved[top]:
                raise UserError(f"{text} sets '{top}', which nothing reads; choose one with {top}=NAME.")
        elif top not in references or (top == "data" and rest):
            part = whole or next((part for part in PARTS if unresolved.get(part)), "rule")
            settings = f"check has {listed(SETTINGS)}"
            raise UserError(
                f"{text} sets '{key if top == 'data' else top}', which nothing reads.{hint(text, key, unresolved)} "
                + (
                    f"{of_class}; {settings}."
                    if of_class
                    else f"{settings}, and what a part has as {part}.KEY."
                )
            )


def _place_of_m(unresolved: Any, whole: str) -> str:
    """Return in words where a kernel or a method has its minibatch size, empty if nowhere."""
    parts = taken_settings(unresolved[whole], whole)
    path = next((path for path, takes in parts if "m" in takes), None)
    return f" Give {path}.m=VALUE." if path is not None else ""


def part_of(overrides: Sequence[str]) -> str:
    """Return the group of the part that overrides choose, such as dynamics."""
    return next(
        (part for part in PARTS if any(override.startswith(f"{part}=") for override in overrides)), "rule"
    )


def _refers(node: Any, key: str) -> bool:
    """Return whether a ${...} in a configuration names a key with a dot."""
    return "." in key and re.search(rf"\$\{{[^}}]*(?<![\w.]){re.escape(key)}\b", str(node)) is not None


def _others() -> set[str]:
    """Return the settings at the top that parts may refer to."""
    return set(yaml.safe_load((CONF / "check.yaml").read_text(encoding="utf-8"))) - {"defaults"}
