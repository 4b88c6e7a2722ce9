"""Parameters in which a log-likelihood is a step function: it depends on them, but its gradient is 0."""

from __future__ import annotations

import warnings
from weakref import WeakSet

import torch
from torch import Tensor

from mhrun.models.function import FunctionModel
from mhrun.models.parameters import coordinate_names
from mhrun.target import Target
from mhrun.target.gradients import Gradients
from mhrun.types import Rows

_ROWS = 2_000  # data that are evaluated, at most
_HALVINGS = 40  # of the distance between two points, down to rounding
_TRIED = 20  # coordinates without a gradient that are moved, at most
_warned: WeakSet[FunctionModel] = WeakSet()  # a method and its pilot check the same model
_MOVES = (0.03, 0.3, 3.0)  # by what, in both directions; in the units of one and the coordinate's size


def warn_of_steps(target: Target, theta: Tensor) -> None:
    """Warn of a function whose log-likelihood changes with a coordinate in which it has no gradient anywhere near.

    Such are a change point in a comparison, or a number that is rounded. Moves by gradients do not see them, and the
    derivatives of such a function agree with its finite differences: all are 0.

    Args:
        target: of the model.
        theta: a point (1, D).
    """
    if not isinstance(target.model, FunctionModel) or target.model in _warned:
        return
    name = coordinate_with_steps(target, theta)
    if name is not None:
        _warned.add(target.model)
        warnings.warn(
            f"log_lik changes with {name} in steps, and has no gradient in it: moves "
            "by gradients do not see it. Take random walks (mcmc), or make the steps smooth, such as "
            "torch.sigmoid((t - change) / width) for t > change.",
            UserWarning,
            stacklevel=2,
        )


def coordinate_with_steps(target: Target, theta: Tensor) -> str | None:
    """Return the name of the first coordinate in which a function has steps and no gradient, see `warn_of_steps`.

    None if there is no such coordinate, or the model is no function.
    """
    if not isinstance(target.model, FunctionModel):
        return None
    try:
        coordinate = _first(target, theta.double())
    except Exception:
        # The model is not for float64, or not for these points; any other error comes again in the run.
        return None
    return None if coordinate is None else coordinate_names(target.model)[coordinate]


@torch.no_grad()
def _first(target: Target, theta: Tensor) -> int | None:
    """Return the first coordinate with steps and without a gradient, or None."""
    every = -(-target.n // _ROWS)
    rows = target.data.rows(torch.arange(0, target.n, every, device=target.data.device)[None])
    gradients = Gradients(target.model)
    value, grad = gradients.log_lik_and_grad(theta, rows)
    for coordinate in (grad[0] == 0).nonzero().flatten()[:_TRIED].tolist():
        sizes = (1 + theta[0, coordinate].abs()) * torch.tensor(
            _MOVES, dtype=torch.float64, device=theta.device
        )
        moves = torch.zeros(2 * len(_MOVES), theta.shape[1], dtype=torch.float64, device=theta.device)
        moves[:, coordinate] = torch.cat([sizes, -sizes])
        changed = None
        for moved in theta + moves:
            other, grad = gradients.log_lik_and_grad(moved[None], rows)
            if not bool(other.isfinite().all()):
                continue
            if float(grad[0, coordinate]) != 0:
                break
            if changed is None and bool((other != value).any()):
                changed = moved[None]
        else:
            if changed is not None and not _is_slope(gradients, theta, changed, value, coordinate, rows):
                return coordinate
    return None


def _is_slope(
    gradients: Gradients, low: Tensor, high: Tensor, value: Tensor, coordinate: int, rows: Rows
) -> bool:
    """Return whether there is a gradient between two points (1, D) of different values, of which neither has one.

    A function that is clamped has it in the middle. Halving the distance to where the value changes finds it.
    """
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        other, grad = gradients.log_lik_and_grad(middle, rows)
        if float(grad[0, coordinate]) != 0:
            return True
        low, high = (middle, high) if torch.equal(other, value) else (low, middle)
    return False
