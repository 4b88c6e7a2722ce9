"""Checks of the settings of `mhrun.sample`, and schedules from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

import numpy as np
import torch

from mhrun.errors import UserError
from mhrun.numbers import is_number
from mhrun.parts import AUTO, Kernel
from mhrun.schedules import Schedule
from mhrun.schedules.fixed import Fixed
from mhrun.schedules.plan import is_auto
from mhrun.schedules.tuned import Tuned
from mhrun.target.configured import unavailable


def check_device(device: str, dtype: Any) -> None:
    """Refuse a device or a type of parameters that there is not."""
    if str(device).split(":")[0] not in ("cpu", *["cuda"] * torch.cuda.is_available()):
        raise UserError(unavailable(str(device)))
    if isinstance(dtype, str) or dtype not in (torch.float64, torch.float32):
        raise UserError(f"dtype = {dtype!r} must be torch.float64 or torch.float32.")


def step_size_schedule(
    step_size: float | str | Schedule, acceptance: float | None, kernel: Kernel
) -> Schedule:
    """Return the schedule of the step size: found by a pilot, tuned in burn-in, fixed, or the one that is given.

    Raises:
        UserError: no number, a number that is not positive, or `acceptance` beside a schedule.
    """
    if is_auto(step_size):
        aim = AUTO if acceptance is None else acceptance
        return Tuned(AUTO, aim) if kernel.decides or acceptance is not None else Fixed(step_size=AUTO)
    if is_scalar(step_size):
        if not 0 < float(step_size) < math.inf:
            raise UserError(
                f"step_size = {step_size} must be positive and finite, or auto: then a pilot finds it."
            )
        return (
            Fixed(step_size=float(step_size)) if acceptance is None else Tuned(float(step_size), acceptance)
        )
    if not isinstance(step_size, Schedule):
        raise UserError(f"step_size = {step_size!r} must be a number, auto, or a schedule.")
    if acceptance is not None:
        raise UserError("acceptance= tunes a number; leave it out where step_size is a schedule.")
    return step_size


def temperature_schedule(
    temperature: float | Sequence[float] | Schedule, rungs: int, chains: int
) -> Schedule:
    """Return the schedule of the temperature: fixed, of all chains or of each rung, or the one that is given.

    Raises:
        UserError: a schedule of another quantity, or one for a ladder.
    """
    if not isinstance(temperature, Schedule):
        return Fixed(temperature=_of_chains(temperature, rungs, chains))
    if "temperature" not in temperature.quantities:
        raise UserError(
            f"temperature = {type(temperature).__name__} is a schedule of {' and '.join(temperature.quantities)}; "
            "give one whose quantities have temperature."
        )
    if rungs > 1:
        raise UserError(
            f"temperature = {type(temperature).__name__}, but a ladder has fixed rungs; give a list of one number each."
        )
    return temperature


def _of_chains(temperature: float | Sequence[float], rungs: int, chains: int) -> float | list[float]:
    """Return the temperature of all chains, or of each, from that of the target or of each rung."""
    if is_scalar(temperature):
        return _temperature(temperature)
    several: Any = temperature
    temperatures = list(several) if isinstance(several, Iterable) and not isinstance(several, str) else []
    if not temperatures or not all(map(is_scalar, temperatures)):
        raise UserError(
            f"temperature = {temperature!r} must be a number or a schedule, or with a ladder a list of one number for "
            "each rung."
        )
    temperatures = [_temperature(value) for value in temperatures]
    if len(temperatures) != rungs:
        raise UserError(
            f"temperature has {len(temperatures)} values for {rungs} rung{'s' * (rungs > 1)}; give "
            + (
                "one for each."
                if rungs > 1
                else "a number, or a kernel with a ladder, mhrun.ReplicaExchange."
            )
        )
    if chains % rungs:
        raise UserError(f"chains = {chains} must be a multiple of the {rungs} rungs of a ladder.")
    if temperatures != sorted(temperatures):
        raise UserError(f"temperature = {temperatures} must increase: the first rung is the coldest.")
    return temperatures * (chains // rungs)


def _temperature(value: Any) -> float:
    if not 0 < value < math.inf:
        raise UserError(f"temperature = {value} must be positive and finite; 1 is the posterior's.")
    return float(value)


def is_scalar(value: Any) -> TypeGuard[float]:
    """Return whether a value is a number, also one of NumPy's or a tensor (), and not true or false."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.ndim == 0 and is_scalar(value.item())
    return is_number(value)
