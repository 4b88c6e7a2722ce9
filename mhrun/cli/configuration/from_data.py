"""Fills in the settings of models that follow from their data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf


def fill_in(config: DictConfig) -> None:
    """Fill in the open settings of the models of an experiment and of its methods, see `mhrun.target.from_data`.

    Data are loaded only if there are some. Settings that refer to them, as ``${model.dim}``, have their values then.

    Raises:
        UserError: data that cannot be loaded, or do not have what a setting stands for.
    """
    _fill_in_model(config, "model", "data")
    methods = config.get("methods")
    for name, method in methods.items_ex(resolve=False) if isinstance(methods, DictConfig) else ():
        if isinstance(method, DictConfig) and method.get("model") is not None:
            place = f"methods.{name!s}"
            data = "data" if method.get("data") is None else f"{place}.data"
            _fill_in_model(config, f"{place}.model", data)


def _fill_in_model(config: DictConfig, place: str, data_place: str) -> None:
    model = _plain(config, place)
    if not isinstance(model, Mapping):
        return
    from mhrun.target.from_data import data_of, may_be_open, settings_from_data  # imports torch

    if not may_be_open(model):
        return
    from mhrun.data.files import look_in
    from mhrun.data.table_roles import check_plain_name

    look_in((_plain(config, "runtime") or {}).get("data_dir"))
    load = cache(lambda: data_of(_plain(config, data_place)))
    for path, value in settings_from_data(model, load, place).items():
        for name in value if isinstance(value, list) else ():
            check_plain_name(str(name), f"{place}.{path}: a name of the data,")
        OmegaConf.update(config, f"{place}.{path}", value, force_add=True)


def _plain(config: DictConfig, place: str) -> Any:
    """Return a node as plain dictionaries, resolved."""
    node = OmegaConf.select(config, place)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
