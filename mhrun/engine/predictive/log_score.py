"""The logarithm of the posterior predictive density of data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mhrun.array_types import Array
from mhrun.data import Dataset
from mhrun.engine.predictive.checks import check_fields, checked_model, is_single
from mhrun.engine.predictive.draws import each_draw, evaluated, valid_draws
from mhrun.engine.predictive.functions import fields_of, over_draws
from mhrun.errors import UserError
from mhrun.keywords import known_keywords
from mhrun.models.parameters import parameters_of
from mhrun.target.fields import unfit
from mhrun.types import Model

if TYPE_CHECKING:
    import xarray as xr

_MANY, _FEW = 100, 5  # draws, and the least that the mean density of a datum rests on without a warning


@known_keywords()
@torch.no_grad()
def log_score(
    trace: xr.DataTree,
    model: Model | torch.nn.Module | Callable[..., Tensor],
    data: Any,
    *,
    every: int = 1,
    each: bool = False,
) -> xr.DataArray:
    """Return log (1/S) sum_s p(y_i | theta_s, x_i), the logarithm of the posterior predictive density of each datum.

    Of data that were held out it is the log score, whose sum is higher for the model that predicts them better. With
    `each` it is the log-likelihood of each draw, from which ArviZ computes LOO of the data that were fitted.

    Args:
        trace: what `mhrun.sample` returned, or a trace that was opened from disk.
        model: that was sampled: a model, a torch module, or the function log_lik ``(theta, batch) -> (m,)``.
        data: with their outcomes: a mapping of arrays, a pandas DataFrame or a `Dataset`, with the fields that the
            model reads, or one array for a model of the field ``x`` alone. p is the model's likelihood, in the units
            of its outcome and with the constants that it has.
        every: use every so many draws only.
        each: return log p(y_i | theta_s, x_i) of each draw; draws that are left out are NaN.

    Returns:
        (datum,); with `each`, (chain, draw, datum). Draws are left out as by `predict`. There is a warning of data
        whose mean density rests on fewer than five draws.

    Raises:
        UserError: a trace without draws, another model, or data that do not fit.
    """
    import xarray as xr

    kept, fields = valid_draws(trace, every), Dataset.of(data)
    log_lik = _log_lik(kept.trace, model, data, fields)
    if each:
        terms = each_draw(kept, log_lik, fields.n, [])
        _check(terms.to_numpy()[kept.valid])
        return terms
    total, squares = np.full((2, fields.n), -np.inf)
    for _, values, valid in evaluated(kept, log_lik, fields.n):
        _check(values[valid.reshape(-1)])
        log_p: Array = np.where(valid, values, -np.inf)
        largest = log_p.max(0)
        largest[~np.isfinite(largest)] = 0.0
        densities = np.exp(log_p - largest)
        with np.errstate(divide="ignore"):  # of densities that are 0 at all of these draws
            total = np.logaddexp(total, largest + np.log(densities.sum(0)))
            squares = np.logaddexp(squares, 2 * largest + np.log((densities**2).sum(0)))
    draws = int(kept.valid.sum())
    _warn_of_few(total, squares, draws)
    return xr.DataArray(total - np.log(draws), dims=["datum"])


def _warn_of_few(total: Array, squares: Array, draws: int) -> None:
    """Warn of data whose mean density rests on few draws: (sum p)^2 / sum p^2, from the logarithms of both sums."""
    with np.errstate(invalid="ignore"):
        counts = np.exp(2 * total - squares)
    if draws >= _MANY and (few := counts < _FEW).any():
        warnings.warn(
            f"the log scores of {int(few.sum()):,} of {len(few):,} data rest on fewer than {_FEW} of {draws:,} draws, "
            f"first of datum {int(few.argmax())}: they are probably too low. Such data are far from what the model "
            "predicts, and a sum of scores depends on them.",
            stacklevel=5,
        )


def _check(terms: Array) -> None:
    """Check the log-likelihoods of data at draws that count (S, n): a sum of scores would leave out those that are NaN.

    Raises:
        UserError: one is NaN, or they have another shape.
    """
    if terms.ndim != 2:
        raise UserError(f"the log-likelihood must return one number per datum, not {terms.shape[1:]}.")
    if (bad := np.isnan(terms).any(0)).any():
        raise UserError(
            f"the log-likelihood of {int(bad.sum()):,} of the new data is NaN, first of datum {int(bad.argmax())}; "
            "leave out rows with values that are not finite."
        )


def _log_lik(trace: xr.DataTree, model: Any, data: Any, fields: Dataset) -> Callable[[Any], Tensor]:
    """Return the log-likelihood of each datum over many draws at once: (B, n)."""
    checked, rows = checked_model(model, trace), fields.part(0, fields.n)
    if not isinstance(checked, Model):
        single, what = is_single(data), "the log-likelihood"
        return over_draws(checked, fields_of(rows), fields.n, single=single, what=what)
    if (reason := unfit(checked, fields)) is not None:
        raise UserError(f"the new data: {reason}")
    check_fields(trace, fields, outcome=True)
    parameters = parameters_of(checked)

    def log_lik(theta: Any) -> Tensor:
        coordinates = theta if parameters is None else parameters.theta(theta, "a draw")
        value: Tensor = checked.log_lik(coordinates, rows)
        return value

    return log_lik
