"""A user's function of parameters and data over many draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from mhrun.errors import UserError
from mhrun.models.explained import explained
from mhrun.models.named_tensors import Named
from mhrun.types import Rows

_REPEATED = 32  # calls for one draw, which all give the same unless there are random numbers in the function


def fields_of(rows: Rows) -> dict[str, Tensor]:
    """Return the fields (n, ...) of rows (1, n, ...)."""
    return {name: field[0] for name, field in rows.items()}


def over_draws(
    function: Callable[..., Any],
    fields: Mapping[str, Tensor],
    n: int,
    *,
    single: bool,
    what: str = "the prediction",
) -> Callable[[Any], Tensor]:
    """Return a user's function of theta and a batch over many draws at once; one by one if vmap cannot.

    A function that draws random numbers outside of torch cannot either: all draws of a batch would share them. Repeated
    calls for the first draw show it. Each call has copies, so that a function may change what it is given in place.

    Args:
        function: of the parameters of a draw and the batch.
        fields: of the batch (n, ...).
        n: number of data.
        single: whether the batch is the field ``x`` alone.
        what: the function returns, for messages.
    """
    vectorised, is_first = True, True

    def of_draw(theta: Any) -> Tensor:
        batch = {name: field.clone() for name, field in fields.items()}
        point = (
            Named({name: value.clone() for name, value in theta.items()})
            if isinstance(theta, dict)
            else theta.clone()
        )
        prediction: Tensor = function(point, batch["x"] if single else Named(batch))
        return prediction

    def of_draws(theta: Any) -> Tensor:
        """Return f for a batch of draws: a tensor (B, D), or parameters by name."""
        nonlocal vectorised, is_first
        with explained(what, fields):
            if vectorised:
                try:
                    prediction = torch.func.vmap(of_draw)(theta)
                    if is_first:
                        is_first, first = False, next(_one_by_one(theta))
                        each = [of_draw(first) for _ in range(_REPEATED)]
                        vectorised = all(
                            torch.allclose(one, each[0], 0.0, 0.0, equal_nan=True) for one in each
                        )
                except Exception:  # what vmap lacks; the function's own errors come again below
                    vectorised = False
            if not vectorised:
                each = [of_draw(draw) for draw in _one_by_one(theta)]
                if not all(isinstance(one, Tensor) for one in each):
                    raise UserError(
                        f"{what} must return a tensor, and returned a {type(each[0]).__name__}; use torch "
                        "operations throughout, or torch.as_tensor of what is returned."
                    )
                prediction = torch.stack(each)
        if not isinstance(prediction, Tensor) or prediction.shape[1:2] != (n,):
            raise UserError(f"{what} must return one row per datum, a tensor ({n}, ...).")
        return prediction

    return of_draws


def _one_by_one(theta: Any) -> Iterator[Any]:
    """Yield the draws of a batch: a tensor (B, D), or parameters by name."""
    if not isinstance(theta, dict):
        yield from theta
        return
    for draw in zip(*theta.values(), strict=True):
        yield dict(zip(theta, draw, strict=True))
