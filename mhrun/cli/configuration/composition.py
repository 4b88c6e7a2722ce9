"""Composes overrides to a Hydra configuration that is not yet resolved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra import initialize_config_dir
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mhrun.cli.configuration.hydra_settings import LAUNCHER, check_node, is_of_hydra
from mhrun.cli.configuration.loader import Loader
from mhrun.cli.configuration.overrides import parsed
from mhrun.cli.places import endless_defaults, experiments
from mhrun.errors import UserError, reason
from mhrun.paths import CONF

_CHOICES = 8  # parts of a group that a message names


def version_base() -> dict[str, str]:
    """Return the argument that Hydra 1.3 wants and later versions do not."""
    major, minor = (int(part) for part in hydra.__version__.split(".")[:2])
    return {"version_base": "1.3"} if (major, minor) < (1, 4) else {}


def search_path(folders: Sequence[Path]) -> list[str]:
    """Return the override that lets Hydra find what is in the user's folders, through `ProjectSource`."""
    quoted = (str(folder.resolve()).replace("'", "\\'") for folder in folders)
    places = ",".join(f"'mhrun://{folder}'" for folder in quoted)
    return [f"hydra.searchpath=[{places}]"] if folders else []


def composed(
    overrides: Sequence[str], folders: Sequence[Path] = (), name: str = "config", *, multirun: bool = False
) -> DictConfig:
    """Return the configuration of these overrides as Hydra has it, not yet resolved.

    Args:
        overrides: of the command line.
        folders: the user's.
        name: the primary configuration.
        multirun: as Hydra's own sweeper has it for all jobs, where some overrides have several values.

    Raises:
        UserError: overrides or files that cannot be composed, or a file that changes a setting of Hydra.
        HydraException: other overrides that Hydra cannot compose; `explained` makes one line of it.
    """
    parsed_overrides = parsed(overrides)
    for override in parsed_overrides:
        _check_choice(override, folders)
    of_hydra = [is_of_hydra(override) for override in parsed_overrides]
    hydra_overrides = [override for override, is_hydra in zip(overrides, of_hydra, strict=True) if is_hydra]
    task = [override for override, is_hydra in zip(overrides, of_hydra, strict=True) if not is_hydra]
    place = search_path(folders)
    try:
        config = _composed(overrides, place, name, folders, multirun)
    except (HydraException, OmegaConfBaseException):
        _check_packages(parsed_overrides, folders)  # which explains it
        raise
    _check_packages(parsed_overrides, folders)
    node: Any = OmegaConf.to_container(config.hydra, resolve=False)
    launcher = node["runtime"]["choices"].get(LAUNCHER)
    if not isinstance(launcher, str):
        raise UserError("hydra/launcher is the name of a launcher, such as basic or joblib.")
    plain = _plain_hydra(
        name, launcher, tuple(override for override in hydra_overrides if not override.startswith(LAUNCHER))
    )
    check_node(node, plain, [*hydra_overrides, *place], task)
    return config


def _check_choice(override: Override, folders: Sequence[Path]) -> None:
    """Refuse an override that gives a value, which is no name, where the name of a part is due.

    Raises:
        UserError: ``monitor={every: 10}`` or ``data=null``, for example.
    """
    group, line = str(override.key_or_group), override.input_line or ""
    names = sorted(p.stem for place in [CONF, *folders] for p in (place / group).glob("*.yaml"))
    if not names or override.is_delete() or override.is_sweep_override():
        return
    value = override.value()
    if isinstance(value, str | list):
        return
    key, _, text = line.lstrip("+").partition("=")
    choices = f"{', '.join(names[:_CHOICES])}{', ...' * (len(names) > _CHOICES)}"
    settings = (
        [f"{override.package or group}.{name}=VALUE" for name in value] if isinstance(value, dict) else []
    )
    add = "" if group == "experiment" else f", or +{key}=NAME where there is none yet"
    also = f", and set {', '.join(settings)}" if settings else ""
    raise UserError(f"{key} = {text} names no {group}: choose one of {choices} with {key}=NAME{add}{also}.")


def _check_packages(overrides: Sequence[Override], folders: Sequence[Path]) -> None:
    """Refuse an experiment whose file is not for the whole configuration: its settings would be in a group.

    Raises:
        UserError: its first lines have no ``# @package _global_``.
    """
    for override in overrides:
        _check_package(override, folders)


def _check_package(override: Override, folders: Sequence[Path]) -> None:
    if override.key_or_group != "experiment" or override.is_delete() or override.is_sweep_override():
        return
    path = experiments(folders).get(str(override.value()))
    if path is None or not path.is_file():
        return
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    header = takewhile(lambda line: not line.strip() or line.startswith("#"), lines)  # as far as Hydra looks
    found = re.search(r"^#\s*@package\s+(\S+)", "\n".join(header), re.MULTILINE)
    if found is None:
        raise UserError(f"experiment/{path.name} lacks its first line: # @package _global_")
    if found[1] != "_global_":
        raise UserError(
            f"experiment/{path.name} has the package {found[1]!r}, and an experiment is for the whole configuration: "
            "write # @package _global_"
        )


def _composed(
    overrides: Sequence[str], place: Sequence[str], name: str, folders: Sequence[Path], multirun: bool
) -> DictConfig:
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), "mhrun", **version_base()):
            mode = RunMode.MULTIRUN if multirun else RunMode.RUN
            return Loader(create_config_search_path(str(CONF))).load_configuration(
                name, [*overrides, *place], mode, from_shell=False
            )
    except RecursionError as error:
        raise UserError(endless_defaults(overrides, folders)) from error
    except (HydraException, OmegaConfBaseException) as error:
        if isinstance(error.__context__, RecursionError):
            raise UserError(endless_defaults(overrides, folders)) from error
        raise
    except (TypeError, AssertionError) as error:  # a group that is set to numbers
        raise UserError(
            "these settings cannot be put together: a group, such as data or model, takes the name of one of its "
            "files (data=mixture)."
        ) from error
    except (ValueError, KeyError, AttributeError, IndexError, OSError, yaml.YAMLError) as error:
        # What Hydra raises of settings of a kind that it does not expect, such as a group that is set to nothing.
        raise UserError(f"these settings cannot be put together: {reason(error)}") from error


@lru_cache(maxsize=64)
def _plain_hydra(name: str, launcher: str, overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return Hydra's settings without any file of the user's."""
    config = _composed([f"{LAUNCHER}={launcher}", *overrides], (), name, (), False)
    settings: Any = OmegaConf.to_container(config.hydra, resolve=False)
    return dict(settings)
