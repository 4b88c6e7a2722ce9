"""Fills in the settings of models that follow from their data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from mhrun.errors import UserError


def fill_in(config: DictConfig) -> None:
    """Fill in the open settings of the models of an experiment and of its methods, see `mhrun.target.from_data`.

    Data are loaded only if a model has such settings. A method that replaces the experiment's data but not its model
    gets that model with the sizes of the method's data. ``${model.dim}`` in another setting is the size filled in.

    Raises:
        UserError: data that cannot be loaded, or do not have what a setting stands for.
    """
    methods = config.get("methods")
    for name, method in methods.items_ex(resolve=False) if isinstance(methods, DictConfig) else ():
        if not isinstance(method, DictConfig):
            continue
        place = f"methods.{name!s}"
        has_model, has_data = (method.get(part) is not None for part in ("model", "data"))
        if has_model:
            _fill_in_model(config, f"{place}.model", f"{place}.data" if has_data else "data")
        elif has_data:
            found = _found(config, "model", f"{place}.data")
            if found != _found(config, "model", "data"):
                OmegaConf.update(config, f"{place}.model", _plain(config, "model"), force_add=True)
                _set(config, f"{place}.model", found)
    _fill_in_model(config, "model", "data")


def _fill_in_model(config: DictConfig, place: str, data_place: str) -> None:
    _set(config, place, _found(config, place, data_place))


def _set(config: DictConfig, place: str, found: Mapping[str, Any]) -> None:
    for path, value in found.items():
        OmegaConf.update(config, f"{place}.{path}", value, force_add=True)


def _found(config: DictConfig, place: str, data_place: str) -> dict[str, Any]:
    """Return the settings of a model that follow from data, by their path in its node."""
    model = _plain(config, place)
    if not isinstance(model, Mapping) or not _may_be_open(model):
        return {}
    from mhrun.data.files import look_in  # imports torch

    look_in((_plain(config, "runtime") or {}).get("data_dir"))
    data = _plain(config, data_place)
    stamps = tuple(_stamps(data))
    return dict(_from_data(json.dumps(model, default=str), json.dumps(data, default=str), stamps, place))


def _may_be_open(model: Mapping[str, Any]) -> bool:
    """Return whether a model may have settings that follow from its data: without torch, which takes a second."""
    parameters = model.get("parameters")
    settings = parameters.values() if isinstance(parameters, Mapping) else ()
    has_axes = any(isinstance(setting, Mapping) and setting.get("dims") for setting in settings)
    return has_axes or any(model.get(size, 0) is None for size in ("dim", "features", "classes"))


@cache  # the jobs of a sweep have few data sets, which may take seconds to read
def _from_data(model: str, data: str, _stamps: tuple[Any, ...], place: str) -> dict[str, Any]:
    """Return the settings of a model, both nodes in JSON, with the state of the files that the data name."""
    from mhrun.data.table_roles import check_plain_name
    from mhrun.target.from_data import data_of, settings_from_data

    found = settings_from_data(json.loads(model), cache(lambda: data_of(json.loads(data))), place)
    for path, value in found.items():
        for name in value if isinstance(value, list) else ():
            check_plain_name(str(name), f"{place}.{path}: a name of the data,")
    return found


def _stamps(node: Any) -> Iterator[tuple[int, int]]:
    """Yield time and size of each file that a node of the data names."""
    from mhrun.paths import located

    if isinstance(node, Mapping):
        for value in node.values():
            yield from _stamps(value)
    elif isinstance(node, str):
        try:
            status = located(node).stat()
        except (UserError, OSError, ValueError):
            return
        yield status.st_mtime_ns, status.st_size


def _plain(config: DictConfig, place: str) -> Any:
    """Return a node as plain dictionaries, resolved."""
    node = OmegaConf.select(config, place)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
