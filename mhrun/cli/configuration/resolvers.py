"""The arithmetic of configurations: OmegaConf's resolvers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from mhrun import units
from mhrun.cli.configuration.parse_cache import keep_parse_trees
from mhrun.cli.configuration.resolution import decoded, environment, name_part, power
from mhrun.errors import UserError
from mhrun.numbers import is_number


def register_resolvers() -> None:
    """Register the arithmetic that configurations use with OmegaConf."""
    keep_parse_trees()
    resolvers: dict[str, Callable[..., Any]] = {
        "times": lambda a, b: a * b,
        "power": power,
        "batch_size": units.batch_size,
        "mint_temperature": units.mint_temperature,
        "learning_rate": units.step_from_learning_rate,
        "learning_rate_steps": units.learning_rate_steps,
        "ladder": units.ladder,
        "over_rungs": units.over_rungs,
        "batch_sizes": units.batch_sizes,
        "batch_temperatures": units.batch_temperatures,
        "first_axis": units.first_axis,
    }
    for name, function in resolvers.items():
        OmegaConf.register_new_resolver(name, _of_numbers(function), replace=True)
    OmegaConf.register_new_resolver("learning_rates", units.steps_from_learning_rates, replace=True)
    OmegaConf.register_new_resolver("name_part", name_part, replace=True)
    OmegaConf.register_new_resolver("oc.env", environment, replace=True)
    OmegaConf.register_new_resolver("oc.decode", decoded, replace=True)
    OmegaConf.register_new_resolver("oc.create", _no_create, replace=True)


def _no_create(text: Any) -> Any:
    raise UserError("oc.create is not one of mhrun's resolvers; write the values themselves.")


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    names = list(inspect.signature(function).parameters)

    def checked(*values: Any) -> Any:
        for name, value in zip(names, values, strict=True):
            if not is_number(value):
                raise UserError(
                    f"{name} = {value!r} must be a number."
                    if len(name) > 1
                    else f"{value!r} must be a number: the experiment computes with it."
                )
        return function(*values)

    return checked
