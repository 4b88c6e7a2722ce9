"""The posterior predictive of a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mhrun.array_types import Array
from mhrun.data import Dataset
from mhrun.engine.model_checks.starting_density import rows_not_finite
from mhrun.engine.predictive.checks import check_fields, check_rows, checked_model, is_single
from mhrun.engine.predictive.draws import dimensions, each_draw, evaluated, valid_draws
from mhrun.engine.predictive.functions import fields_of, over_draws
from mhrun.errors import UserError
from mhrun.keywords import known_keywords
from mhrun.models.function import FunctionModel
from mhrun.models.module import ModuleModel
from mhrun.models.parameters import parameters_of
from mhrun.numbers import is_whole
from mhrun.target.fields import ambiguous_bytes
from mhrun.types import Model
from mhrun.types.capabilities import HasOutcomeMean, offers, predicts_classes

if TYPE_CHECKING:
    import xarray as xr


@known_keywords()
@torch.no_grad()
def predict(
    trace: xr.DataTree,
    model: Model | torch.nn.Module | Callable[..., Tensor],
    x: Any,
    *,
    every: int = 1,
    each: bool = False,
    seed: int = 0,
) -> xr.DataArray:
    """Return (1/S) sum_s f(theta_s, x_i), the mean of a prediction f over the draws theta_s, for each new datum x_i.

    Args:
        trace: what `mhrun.sample` returned, or a trace that was opened from disk.
        model: what f is: of a model of classes, the probability of each class; of a logistic, Poisson, binomial
            or robust regression, the mean of the outcome (logistic: the probability of +1); of a `FunctionModel`, its
            `mean`; of a torch module with a ``likelihood=``, the module's outputs; a function ``(theta, batch) ->
            (m, ...)`` is f itself, with theta and batch as a log-likelihood has them.
        x: the new data: an array, a mapping of arrays, a pandas DataFrame or a `Dataset`; with the field ``exposure``
            or ``trials`` if the regression was fitted with them.
        every: use every so many draws only.
        each: return f at each draw, not the mean; draws that are left out are NaN.
        seed: of the random numbers of a function that samples, such as ``StudentT(...).sample()``: new data of each
            draw, for prediction intervals. The state of torch's own generators is kept.

    Returns:
        (datum, ...): (datum, class) for classes; with `each`, (chain, draw, datum, ...). The mean is over the draws of
        all chains, but those that ``sample_stats["valid"]`` excludes and those of chains that stopped at a value that
        was not finite, which the last steps of the trace show; of a ladder, the draws of its coldest rung.

    Raises:
        UserError: a trace without draws, a model that predicts nothing, or data that do not fit or are NaN.
    """
    import xarray as xr

    if x is None:
        raise UserError(
            "predict needs data, and x is None; the expectation of a function of the parameters is its mean over the "
            'draws in trace["posterior"].'
        )
    kept = valid_draws(trace, every)
    if not is_whole(seed) or not 0 <= seed < 1 << 63:
        raise UserError(f"seed = {seed!r} must be a whole number from 0 to 2^63 - 1.")
    data = Dataset.of(x)
    if isinstance(model, Model) and (reason := ambiguous_bytes(model, data)) is not None:
        raise UserError(reason)
    quantity, names = _quantity(kept.trace, model, x, data)
    with _seeded(int(seed)):
        if each:
            found = each_draw(kept, quantity, data.n, names)
            _check_finite(data, found.to_numpy()[kept.valid])
            return found
        total: Array | float = 0.0
        for _, values, valid in evaluated(kept, quantity, data.n):
            total = total + np.where(valid, values, 0.0).sum(0)
    assert isinstance(total, np.ndarray)
    _check_finite(data, total[None])
    return xr.DataArray(total / int(kept.valid.sum()), dims=["datum", *dimensions(names, total.ndim - 1)])


def _check_finite(data: Dataset, values: Array) -> None:
    """Check that predictions (S, n, ...) of data with NaN are not NaN: a function may have a use for such data."""
    bad = rows_not_finite(data.fields, 1)
    if len(bad) and np.isnan(values[:, int(bad[0])]).any():
        raise UserError(
            f"row {int(bad[0]):,} of the new data (counted from 0) has NaN or an infinity, and so has its prediction."
        )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators, and restore their states afterwards."""
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(cuda)):
        torch.manual_seed(seed)
        yield


def _quantity(
    trace: xr.DataTree, model: Any, x: Any, data: Dataset
) -> tuple[Callable[[Any], Tensor], list[str]]:
    """Return f over many draws at once, and the names of its first dimensions after the data's."""
    model, rows = checked_model(model, trace), data.part(0, data.n)
    if isinstance(model, ModuleModel):
        check_rows(model, data)
        if not model.is_classifier:
            return lambda theta: model.outputs(theta, rows), []
    if not isinstance(model, Model):
        return over_draws(model, fields_of(rows), data.n, single=is_single(x)), []
    has_names = parameters_of(model) is not None
    if predicts_classes(model) and not has_names:
        check_rows(model, data)
        return lambda theta: model.predict(theta, rows).exp(), ["class"]
    if offers(model, HasOutcomeMean):
        check_rows(model, data)
        check_fields(trace, data)
        return lambda theta: model.outcome_mean(theta, rows), []
    if isinstance(model, FunctionModel) and model.mean is not None:
        return over_draws(model.mean, fields_of(rows), data.n, single=is_single(x)), []
    example = "theta.slopes" if has_names else "theta"
    raise UserError(
        f"{type(model).__name__} does not say what it predicts; give a function of parameters and rows, such as "
        f"lambda theta, rows: rows.x @ {example}."
    )
