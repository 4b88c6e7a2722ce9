"""Checks of a user's model before a run: properties that every method relies on.

They compare the model with itself at the start of the first chain, on a few data: a log-likelihood that depends on the
rest of the minibatch, or a gradient that is not that of its log-likelihood, make draws wrong that look right.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from mhrun.engine.model_checks.step_functions import warn_of_steps
from mhrun.engine.model_checks.support import check_support
from mhrun.errors import Refusal
from mhrun.models.function import FunctionModel
from mhrun.models.module import ModuleModel
from mhrun.native import native_form
from mhrun.ownership import is_bundled
from mhrun.random import Draws, Purpose, Streams
from mhrun.target import Target
from mhrun.target.gradients import Gradients
from mhrun.types import BUFFER, Model, Rows
from mhrun.types.capabilities import HasBuffers, offers

_ROWS = 5  # data that are evaluated alone
_TOGETHER, _TOGETHER_OF_MODULE = 300, 30  # and at once: a large network takes long
_DERIVATIVES = 20  # coordinates in which the gradient is compared with finite differences
_ROUNDING = 1.0  # nats by which rounding may change the log-likelihood of all data
_DISTANCE = 0.1  # from the start, where zeros may hide what is wrong
_ROUNDING_DISTANCE = 1e-3  # the same where rounding is measured
# Relative differences that rounding does not make: of values of float64 and others, and of finite differences.
_VALUES, _FINITE = {True: 1e-9, False: 1e-3}, {True: 1e-4, False: 0.1}
_OF_FLOAT32 = 1e-5  # of sums of products of float32 numbers
_STEPS = {True: 1e-5, False: 1e-2}  # of finite differences
# The same where a part may not be differentiated: by what the two may differ, the least share of the part, and numbers
# that are moved at most.
_TRIED, _AGREE, _HIDDEN, _MOVED = (1e-5, 1e-3), 0.01, 0.1, 2_000_000


def check_model(target: Target, theta: Tensor, *, takes_gradients: bool = True) -> None:
    """Check a user's model at a starting point theta (1, D); bundled models are covered by tests.

    Args:
        target: of the model.
        theta: the starting point.
        takes_gradients: whether the chains move by gradients; without them no derivative of a function is checked.

    Raises:
        Refusal: log-likelihoods depend on the rest of the minibatch, are rounded to the float32 of a field, or a
            gradient is not that of its function.
    """
    model = target.model
    is_user_model = not is_bundled(model)
    if target.data.differs_by_chain:  # as in calibration
        return
    rows = target.data.rows(_first(target))
    if isinstance(model, ModuleModel):
        if model.batch_norms:  # the documentation says that BatchNorm depends on the minibatch
            return
        if model.buffer_names:
            _warn_of_constant_buffers(model, theta, rows)
    if not (is_user_model or isinstance(model, FunctionModel | ModuleModel)):
        return
    check_support(target, theta)
    point = _near(model, theta, rows)
    check_rows(target, point)
    _check_precision(target, theta + _ROUNDING_DISTANCE / _DISTANCE * (point - theta))
    both = native_form(model, "log_lik_and_grad", "log_lik")
    # Gradients are those of training mode
    by_minibatch = offers(model, HasBuffers) and bool(model.buffer_names)
    if takes_gradients and (both is None or not is_user_model) and not by_minibatch:
        check_derivatives(target, point, rows)
        warn_of_steps(target, point)
    if is_user_model:
        if both is not None:
            grad = both(point, rows)[1][0]
            _compare(
                model, "log_lik_and_grad", grad, point, lambda at: model.log_lik(at, rows).double().mean(-1)
            )
        of_prior = native_form(model, "log_prior_grad", "log_prior")
        if of_prior is not None and (grad := of_prior(point)) is not None:
            _compare(model, "log_prior_grad", grad[0], point, lambda at: model.log_prior(at).double())


def _warn_of_constant_buffers(model: ModuleModel, theta: Tensor, rows: Rows) -> None:
    """Warn of buffers that are part of a chain's state, though no minibatch changes them."""
    before = model.first_buffers(theta)
    with suppress(Exception):  # a module that fails in training mode fails in the run, too
        _, _, after = model.train(theta, before, rows)
        names = [
            name.removeprefix(BUFFER) for name, value in before.items() if torch.equal(value, after[name])
        ]
        if names:
            warnings.warn(
                f"no minibatch changes the buffer{'s' * (len(names) > 1)} {', '.join(names)}, and each chain has its "
                "own, as of BatchNorm: pass module.eval(), or that layer's, to make them constants.",
                UserWarning,
                stacklevel=2,
            )


@torch.no_grad()
def _near(model: Model, theta: Tensor, rows: Rows) -> Tensor:
    """Return a point (1, D) near the start, or the start where the model has no finite value nearby."""
    z = Draws(Streams(0, 1, theta.device), 0).normal(Purpose.INIT, theta.shape[1])
    point = theta + _DISTANCE * (1 + theta.abs()) * z.to(theta)
    with suppress(Exception):  # a model may refuse points outside of its support in any way
        if bool(model.log_lik(point, rows).isfinite().all()):
            return point
    return theta


def _first(target: Target) -> Tensor:
    return torch.arange(min(target.n, _ROWS), device=target.data.device)[None]


@torch.no_grad()
def check_rows(target: Target, theta: Tensor) -> None:
    """Check that a log-likelihood is a function of its datum and theta alone.

    Data are evaluated in one minibatch, in two parts of it, and the first of them alone: a quantile depends on the
    minibatch only where it is large, and a standard deviation is NaN of one datum.
    """
    if target.n < 2:
        return
    most = _TOGETHER_OF_MODULE if isinstance(target.model, ModuleModel) else _TOGETHER
    places = torch.linspace(0, target.n - 1, min(target.n, most), dtype=torch.float64).round().long()
    rows = torch.cat([torch.arange(min(target.n, _ROWS)), places]).unique().to(target.data.device)
    is_third = torch.arange(len(rows), device=rows.device) % 3 == 0

    def values(index: Tensor) -> Tensor:
        return target.model.log_lik(theta, target.data.rows(index[None]))[0]

    together = values(rows)
    in_parts = torch.empty_like(together)
    in_parts[is_third], in_parts[~is_third] = values(rows[is_third]), values(rows[~is_third])
    with warnings.catch_warnings():  # a statistic of one datum may warn
        warnings.simplefilter("ignore")
        alone = torch.cat([values(one[None]) for one in rows[:_ROWS]])
    size_of_part = torch.where(is_third, int(is_third.sum()), int((~is_third).sum()))
    fields = [field for field in target.data.rows(rows[:1][None]).values() if field.is_floating_point()]
    rounding = _VALUES[together.dtype == torch.float64]
    # Products with them are rounded, whatever is returned.
    if theta.dtype != torch.float64 or any(field.dtype != torch.float64 for field in fields):
        rounding = max(rounding, _OF_FLOAT32)
    for found, sizes in ((alone, [1] * len(alone)), (in_parts, size_of_part.tolist())):
        row = _differing(found, together[: len(found)], rounding)
        if row is not None:
            where = "alone" if sizes[row] == 1 else f"in a minibatch of {sizes[row]}"
            raise Refusal(
                f"log_lik gives the datum in row {int(rows[row])} (counted from 0) {float(found[row]):.10g} {where}, "
                f"and {float(together[row]):.10g} in a minibatch of {len(rows)}. It must be a function of the datum "
                "and theta: without a mean, a quantile, a sum or a length over the minibatch, and without random "
                "numbers. Compute what needs all data before, and pass it with them."
            )


def _differing(found: Tensor, other: Tensor, rounding: float) -> int | None:
    """Return where two evaluations of the same data differ most, relatively by more than rounding; None if nowhere."""
    apart = (found - other).abs() / (rounding * (1 + torch.maximum(found.abs(), other.abs())))
    apart = torch.where((found == other) | (found.isnan() & other.isnan()), 0.0, apart.nan_to_num(torch.inf))
    worst = int(apart.argmax())
    return worst if float(apart[worst]) > 1 else None


@torch.no_grad()
def _check_precision(target: Target, theta: Tensor) -> None:
    """Check that float32 fields leave enough of a float64 log-likelihood.

    In torch an expression of a float32 vector and a float64 number is float32: it rounds the parameter. The error of n
    independently rounded terms may be one nat. The point theta (1, D) is near the start, but no round number itself:
    far from the posterior, where terms are large, rounding does no harm.
    """
    rows = target.data.rows(_first(target))
    low = [
        name for name, field in rows.items() if field.dtype in (torch.float16, torch.bfloat16, torch.float32)
    ]
    if theta.dtype != torch.float64 or not low:
        return
    wide = {name: field.double() if name in low else field for name, field in rows.items()}
    given = target.model.log_lik(theta, rows)[0].double()
    try:
        exact = target.model.log_lik(theta, wide)[0].double()
    except Exception:  # the function may need the types that the data have, which it was given above
        return
    if not float((exact - given).abs().max()) * target.n**0.5 > _ROUNDING:
        return
    row = int((exact - given).abs().argmax())
    raise Refusal(
        f"log_lik gives the datum in row {row} (counted from 0) {float(given[row]):.9g}, and {float(exact[row]):.9g} "
        f"with {' and '.join(low)} in float64: a float32 field and a number of float64 make a float32, in which the "
        f"parameters are rounded. Give the data in float64, or write rows.{low[0]}.double()."
    )


@torch.no_grad()
def check_derivatives(target: Target, point: Tensor, rows: Rows) -> None:
    """Check that all of a log-likelihood is differentiated: `detach`, or a number taken out of a tensor, hides a part.

    Finite differences are believed where those of two steps agree: rounding, kinks and fast oscillations make them
    differ.
    """
    model, at = target.model, point.double()
    coordinates = _some_coordinates(at, max(2, min(_DERIVATIVES, _MOVED // at.shape[1])))
    try:
        grad = Gradients(model).log_lik_and_grad(at, rows)[1][0, coordinates].double()
        differences = torch.stack([_differences(model, at, rows, coordinates, step) for step in _TRIED])
    except Exception:  # of a model that is not for float64; what else fails does so in the run
        return
    size = differences.abs().amax(0)
    agree = ((differences[0] - differences[1]).abs() <= _AGREE * size) & (size > 0) & size.isfinite()
    wrong = agree & ((differences[0] - grad).abs() > _HIDDEN * torch.maximum(size, grad.abs()))
    if not bool(wrong.any()):
        return
    worst = int(((differences[0] - grad).abs() * wrong).nan_to_num().argmax())
    raise Refusal(
        f"log_lik has the derivative {float(differences[0][worst]):.6g} by {_name(model, at, coordinates[worst])}, and "
        f"torch finds {float(grad[worst]):.6g}: a part of it is not differentiated. Use torch operations throughout, "
        "without detach, item, NumPy or conversion to integers."
    )


def _differences(model: Model, point: Tensor, rows: Rows, coordinates: Tensor, step: float) -> Tensor:
    """Return the derivatives of the mean log-likelihood in some coordinates, one after another: points may be large."""
    found = []
    for place in coordinates.tolist():
        size, values = step * (1 + float(point[0, place].abs())), []
        for sign in (1, -1):
            moved = point.clone()
            moved[0, place] += sign * size
            values.append(model.log_lik(moved, rows).double().mean())
        found.append((values[0] - values[1]) / (2 * size))
    return torch.stack(found)


def _some_coordinates(point: Tensor, most: int = _DERIVATIVES) -> Tensor:
    """Return the places of the coordinates of a point (1, D) in which derivatives are compared."""
    dim = point.shape[1]
    return torch.linspace(0, dim - 1, min(dim, most), device=point.device).round().long()


def _name(model: Model, point: Tensor, place: Tensor) -> str:
    return model.names[int(place)] if len(model.names) == point.shape[1] else f"theta[{int(place)}]"


@torch.no_grad()
def _compare(
    model: Model, method: str, grad: Tensor, point: Tensor, function: Callable[[Tensor], Tensor]
) -> None:
    """Compare a gradient (D,) at a point (1, D) with finite differences of its function, (P, D) -> (P,)."""
    dim, exact = point.shape[1], point.dtype == torch.float64
    coordinates = _some_coordinates(point)
    steps = _STEPS[exact] * (1 + point[0, coordinates].abs())
    moves = torch.zeros(len(coordinates), dim, dtype=point.dtype, device=point.device)
    moves[torch.arange(len(coordinates)), coordinates] = steps
    up, down = function(point + moves), function(point - moves)
    differences, given = (up - down) / (2 * steps.double()), grad[coordinates].double()
    if not differences.isfinite().all() or not given.isfinite().all():
        return
    size = torch.maximum(differences.abs(), given.abs())
    rounding = 10 * torch.finfo(point.dtype).eps * up.abs() / steps
    apart = (differences - given).abs() - _FINITE[exact] * (size + 1e-3 * size.max()) - rounding
    if not bool((apart > 0).any()):
        return
    worst = int((apart / size.clamp_min(1e-300)).argmax())
    name = _name(model, point, coordinates[worst])
    of = "the mean of log_lik over the minibatch" if method == "log_lik_and_grad" else "log_prior"
    raise Refusal(
        f"{type(model).__name__}.{method} gives {name} the gradient {float(given[worst]):.6g}, and the derivative of "
        f"{of} there is {float(differences[worst]):.6g}. Correct it, or leave the method out: torch then derives the "
        "gradient."
    )
