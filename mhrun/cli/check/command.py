"""``mhrun check``: correctness checks of a part, a method or a kernel."""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhrun import yaml_file
from mhrun.build import trusted_object
from mhrun.cli.check.calibrate import calibrate, is_calibration
from mhrun.cli.check.output import show_json, show_table
from mhrun.cli.check.subject import subject_of
from mhrun.cli.checked import CLASSES
from mhrun.cli.configuration.composition import composed
from mhrun.cli.configuration.hydra_errors import explained
from mhrun.cli.configuration.resolvers import register_resolvers
from mhrun.cli.configuration.unread_check_overrides import check_class_overrides, check_overrides_read, has
from mhrun.cli.exit_status import FAILED, OK
from mhrun.errors import Refusal, UserError
from mhrun.messages import say

_OF_SCHEDULES = (
    "a schedule of your own is checked as each run begins: shapes and signs of its values, and that they do not "
    "depend on how steps are divided into blocks."
)
_OF_AN_EXPERIMENT = ("model", "data", "monitor", "target")  # which a part is checked without


def check(overrides: Sequence[str], folders: Sequence[Path], *, as_json: bool = False) -> int:
    """Run the checks of a part, print their results, and return 1 if one fails or has no power.

    Raises:
        UserError: invalid arguments, or incompatible parts.
    """
    if not overrides:
        raise UserError(
            "check needs a part: mhrun check rule=NAME, an experiment of your own, experiment=NAME, or the dotted name "
            "of a class (mhrun check --help)."
        )
    if is_calibration(overrides):
        return calibrate(overrides, folders, as_json=as_json)
    for override in overrides:
        if (part := override.lstrip("+").partition("=")[0]) in _OF_AN_EXPERIMENT:
            raise UserError(
                f"check takes no {part}: parts are checked on targets with known distributions. A model is checked "
                f"with its priors and methods: mhrun check experiment=NAME {override.lstrip('+')}."
            )
    config = _composed(list(overrides), folders)
    import torch

    from mhrun.check.results import NOT_PASSED
    from mhrun.check.suite import run_suite

    torch.set_num_threads(1)  # the targets are small
    subject = subject_of(config, " ".join(overrides))
    names = config.checks  # one check needs no brackets
    checks = (
        None if names is None else [str(name) for name in (names if OmegaConf.is_list(names) else [names])]
    )
    shows_progress = not as_json and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    began, results = time.perf_counter(), []
    try:
        for result in run_suite(subject, checks):
            results.append(result)
            if shows_progress:
                print(f"\r\x1b[K{result.check}: {result.outcome}", end="", file=sys.stderr, flush=True)
    except Refusal as error:
        raise UserError(f"{' '.join(overrides)}: {error}") from error
    finally:
        if shows_progress:
            print("\r\x1b[K", end="", file=sys.stderr)
    seconds = time.perf_counter() - began
    (show_json if as_json else show_table)(results, subject, seconds)
    return FAILED if any(result.outcome in NOT_PASSED for result in results) else OK


def _composed(overrides: list[str], folders: Sequence[Path]) -> DictConfig:
    """Return the settings of a check; a dotted name becomes a part of its kind."""
    register_resolvers()
    name: str | None = None
    kind, arguments, settings, of_class = "", dict[str, Any](), dict[str, str](), ""
    if any(override.partition("=")[0].partition("@")[0] == "schedule" for override in overrides):
        raise UserError(_OF_SCHEDULES)
    if "=" not in overrides[0]:
        name = overrides.pop(0)
        kind, takes = _of_a_name(name)
        check_class_overrides(name, kind, takes, overrides)
        of_class = has(name, takes)
        settings = {key: value for key, _, value in (override.partition("=") for override in overrides)}
        given = {key: _read(key, value) for key, value in settings.items() if key in takes and key != "m"}
        arguments = ({"m": "${m}"} if "m" in takes else {}) | given
        overrides = [override for override in overrides if override.partition("=")[0] not in given]
    try:
        config = composed(overrides, folders, "check")
    except (HydraException, OmegaConfBaseException) as error:
        raise explained(error, overrides, folders, "check") from error
    if name is not None:
        OmegaConf.set_struct(config, False)
        config[kind] = {"_target_": name, **arguments}
        if "m" in arguments and "m" not in settings:
            say(f"{name} is checked with m = {config.m}; m=VALUE gives it another one.")
    check_overrides_read(overrides, config, of_class)
    return config


def _of_a_name(name: str) -> tuple[str, list[str]]:
    """Return the kind of a class and its parameters."""
    from mhrun import parts
    from mhrun.schedules.plan import Schedule

    if "." not in name:
        raise UserError(
            f"'{name}' is not a dotted name; give FILE.CLASS, such as {name}.MyRule, or rule=NAME."
        )
    try:
        part = trusted_object(name)
    except UserError as error:
        raise UserError(f"{error}{_checkable(name)}") from error
    for kind in CLASSES:
        if isinstance(part, type) and issubclass(part, getattr(parts, kind.title())):
            return kind, list(inspect.signature(part).parameters)
    if isinstance(part, type) and issubclass(part, Schedule):
        raise UserError(f"{name}: {_OF_SCHEDULES}")
    bases = ", ".join(kind.title() for kind in CLASSES)
    raise UserError(
        f"{name} is not a class of a part; a part derives from a base class of mhrun.parts: {bases}."
        f"{_checkable(name)}"
    )


def _checkable(name: str) -> str:
    """Return a sentence with the classes of a name's module that can be checked; empty if it is not imported."""
    from mhrun import parts

    module_name = name.rpartition(".")[0]
    if (module := sys.modules.get(module_name)) is None:
        return ""
    bases = tuple(getattr(parts, kind.title()) for kind in CLASSES)
    classes = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, bases)
        and value.__module__ == module_name
        and not inspect.isabstract(value)
    ]
    return f" {module_name} has {', '.join(sorted(classes))}." if classes else f" {module_name} has no part."


def _read(key: str, text: str) -> Any:
    """Return an argument of a class, parsed as in a configuration.

    Raises:
        UserError: it cannot be read.
    """
    import yaml

    yaml_file.check(text, f"{key}={text}")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{key}={text} cannot be read as a value (KEY=VALUE, as in YAML).") from error
