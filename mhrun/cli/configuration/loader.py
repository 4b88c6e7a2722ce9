"""Hydra's configuration loader, with a cache of compositions.

Hydra reads and merges some thirty files for a configuration, and then sets single values. The first part takes most of
the time, and is the same for all jobs of a sweep that differ in values alone.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobRuntime
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

_MAX_CACHED = 64  # compositions that are kept
_SEARCH_PATH = "hydra.searchpath"
_Key = tuple[Any, ...]
_bundled_compositions: dict[_Key, DictConfig] = {}  # bundled files do not change during a run


class Loader(ConfigLoaderImpl):  # type: ignore[misc]
    """Loads the configurations that Hydra's own loader does, with the same errors.

    Compositions of files of this package are kept for the process. Those with files of the user's, which may change,
    are kept as long as the loader is.
    """

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker of a sweep needs: what is kept here is made again there."""
        return {name: value for name, value in self.__dict__.items() if name != "_kept"}

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Return the configuration of these overrides, not resolved.

        Raises:
            ConfigCompositionException: overrides or files that cannot be put together.
        """
        parsed = OverridesParser.create().parse_overrides(overrides)
        if validate_sweep_overrides:
            self.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
        folders: list[str] = next(
            (override.value() for override in parsed if override.get_key_element() == _SEARCH_PATH), []
        )
        value_overrides = [override for override in parsed if self._is_value(override, folders)]
        deciding = [override.input_line or "" for override in parsed if override not in value_overrides]
        cache = self.__dict__.setdefault("_kept", {}) if folders else _bundled_compositions
        places = tuple(str(place.path) for place in self.config_search_path.get_path())
        key = (places, JobRuntime().get("name"), config_name, run_mode, validate_sweep_overrides, *deciding)
        if key in cache:
            cache[key] = cache.pop(key)  # the last used is the last
        else:
            if len(cache) >= _MAX_CACHED:
                del cache[next(iter(cache))]
            with _choices_on_demand():
                cache[key] = super().load_configuration(
                    config_name, deciding, run_mode, from_shell, validate_sweep_overrides
                )
        config = copy.deepcopy(cache[key])
        try:
            _fill_deleted_nulls(value_overrides, config)
            self._apply_overrides_to_config(value_overrides, config)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException().with_traceback(sys.exc_info()[2]) from error
        _record(config, parsed, [override for override in parsed if override not in value_overrides])
        return config

    def _is_value(self, override: Override, folders: Sequence[str]) -> bool:
        """Return whether an override sets one value when all files are put together, and chooses none of them."""
        key = override.key_or_group
        return not (
            override.package is not None
            or override.is_sweep_override()
            or "/" in key
            or key == _SEARCH_PATH
            or self.repository.group_exists(key)
            or any((Path(folder.partition("://")[2]) / key).is_dir() for folder in folders)
        )


def _fill_deleted_nulls(overrides: Sequence[Override], config: DictConfig) -> None:
    """Give settings that are null and are to be deleted a value: Hydra takes null for a key that does not exist."""
    for override in overrides:
        if not override.is_delete() or override.value() is not None:
            continue
        place, _, leaf = override.key_or_group.rpartition(".")
        node = OmegaConf.select(config, place, throw_on_missing=False) if place else config
        if isinstance(node, DictConfig) and leaf in node and node[leaf] is None:
            OmegaConf.update(config, override.key_or_group, "")


@contextmanager
def _choices_on_demand() -> Iterator[None]:
    """Let Hydra make its table of choices only for files whose defaults refer to it, as in ``rule: ${kernel}``.

    It makes one for each file that it reads, which takes a third of the time.
    """
    original = defaults_list._create_interpolation_map
    nothing = OmegaConf.create({})

    def on_demand(overrides: Any, defaults_list: Sequence[Any], self_added: bool) -> DictConfig:
        if any(not entry.is_self() and entry.is_interpolation() for entry in defaults_list):
            return original(overrides, defaults_list, self_added)
        return nothing

    defaults_list._create_interpolation_map = on_demand
    try:
        yield
    finally:
        defaults_list._create_interpolation_map = original


def _record(config: DictConfig, overrides: Sequence[Override], included: Sequence[Override]) -> None:
    """Write into a configuration what Hydra does of its overrides, `included` being in it, and where the process is."""
    node = config.hydra
    for name, is_hydras in (("hydra", True), ("task", False)):
        lines: Any = OmegaConf.to_container(node.overrides[name], resolve=False)
        of_files = lines[
            : len(lines) - sum(override.is_hydra_override() == is_hydras for override in included)
        ]
        added = [override.input_line for override in overrides if override.is_hydra_override() == is_hydras]
        node.overrides[name] = [*of_files, *added]
    node.runtime.cwd = os.getcwd()
    names = node.job.config.override_dirname
    node.job.override_dirname = get_overrides_dirname(
        [override for override in overrides if not override.is_hydra_override()],
        kv_sep=names.kv_sep,
        item_sep=names.item_sep,
        exclude_keys=names.exclude_keys,
    )
