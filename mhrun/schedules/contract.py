"""Checks of the values of a user's schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from mhrun.errors import Refusal
from mhrun.ownership import blame

QUANTITIES = ("step_size", "temperature", "noise_temperature")
_CHUNK = 1 << 16  # steps whose values are checked at once
_ROUNDING = 1e-5  # relative difference between two divisions into blocks

Values = Callable[[int, int], Mapping[str, Tensor]]
"""(first_step, steps) -> name -> (K or 1, C or 1), as `Schedule.values` with the memory of the first step."""


def check_values(schedule: Any, name: str, values: Values, chains: int, steps: int) -> None:
    """Check the values of a schedule at the first `steps` steps.

    Raises:
        Refusal: it raised an error; it returned other quantities than it declares, or values of another shape; a step
            size or temperature that is not positive and finite, or a negative noise temperature; or values that depend
            on how steps are divided into blocks.
    """
    what = f"schedule '{name}': values of {type(schedule).__name__}"

    def at(first: int, count: int) -> dict[str, Tensor]:
        try:
            found = values(first, count)
        except Exception as error:
            raise Refusal(f"{what} failed at step {first}: {blame(error)}.") from error
        _check_names(what, found, schedule.quantities)
        return {key: _full(what, key, value, count, chains) for key, value in found.items()}

    for first in range(1, steps + 1, _CHUNK):
        count = min(_CHUNK, steps - first + 1)
        whole = at(first, count)
        for key, value in whole.items():
            _check_signs(what, key, value, first)
        if (cut := count // 3) == 0:
            continue
        for key, part in at(first + cut, count - cut).items():
            expected = whole[key][cut:]
            same = torch.isclose(part, expected, rtol=_ROUNDING, atol=0.0, equal_nan=True)
            if not same.all():
                row, chain = (int(i) for i in (~same).nonzero()[0])
                one, other = (f"{float(values[row, chain]):.9g}" for values in (expected, part))
                raise Refusal(
                    f"{what} depend on how steps are divided into blocks: {key} at step {first + cut + row} is "
                    f"{one} in a block from step {first} on, and {other} in one from {first + cut} on. Compute them "
                    "from first_step."
                )


def _check_names(what: str, found: Any, declared: tuple[str, ...]) -> None:
    if not isinstance(found, Mapping) or set(found) != set(declared) or not set(declared) <= set(QUANTITIES):
        names = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise Refusal(
            f"{what} return {names}, and its quantities are {', '.join(declared)}; they must be the same, of "
            f"{', '.join(QUANTITIES)}."
        )


def _full(what: str, key: str, value: Any, steps: int, chains: int) -> Tensor:
    if not isinstance(value, Tensor) or value.dim() != 2 or value.shape[0] not in (1, steps):
        shape = f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        _refuse_shape(what, key, shape, steps, chains)
    if value.shape[1] not in (1, chains):
        _refuse_shape(what, key, f"the shape {tuple(value.shape)}", steps, chains)
    return value.expand(steps, -1)


def _refuse_shape(what: str, key: str, shape: str, steps: int, chains: int) -> NoReturn:
    raise Refusal(
        f"{what}: {key} of {steps:,} steps of {chains} chains has {shape}; it must be ({steps} or 1, {chains} or 1)."
    )


def _check_signs(what: str, key: str, value: Tensor, first: int) -> None:
    is_positive = key != "noise_temperature"
    valid = value.isfinite() & ((value > 0) if is_positive else (value >= 0))
    if key == "noise_temperature":
        valid |= value.isnan()  # that of the target
    if not valid.all():
        row, chain = (int(i) for i in (~valid).nonzero()[0])
        kind = "positive" if is_positive else "at least 0"
        raise Refusal(
            f"{what}: {key} is {float(value[row, chain]):g} at step {first + row}; it must be {kind} and finite."
        )
