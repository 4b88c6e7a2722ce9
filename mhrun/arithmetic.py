"""The arithmetic of configurations: OmegaConf's resolvers for numbers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from mhrun import units
from mhrun.errors import UserError
from mhrun.numbers import is_number


def register_arithmetic() -> None:
    """Register the arithmetic that the files of methods and experiments use."""
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


def power(a: float, b: float) -> float:
    """Return a^b.

    Raises:
        UserError: the result is not a real number, or too large for a float.
    """
    try:
        number = float(a) ** b
        if isinstance(number, complex) or not math.isfinite(number):
            raise OverflowError
        exact = a**b if isinstance(a, int) and isinstance(b, int) and b >= 0 else number
    except (ArithmeticError, ValueError) as error:
        raise UserError("power: the result is not a number, or larger than 1.8e308.") from error
    return exact


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
