"""Warnings about the draws of a trace."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mhrun.diagnostics.chains import (
    LEAST_DRAWS,
    diagnosed_coordinates,
    some_coordinates,
    valid_of_each,
)
from mhrun.diagnostics.ladders import rung
from mhrun.engine.draws_warnings import draws_warnings
from mhrun.engine.fit import fit_warnings
from mhrun.engine.method import Method
from mhrun.engine.warnings import warnings_of
from mhrun.errors import UserError
from mhrun.models.parameters import constant_coordinates
from mhrun.store.draws import validity
from mhrun.store.netcdf import flat_draws
from mhrun.target import Target
from mhrun.target.function_space import Draws, is_network, predictions, that_vary

if TYPE_CHECKING:
    import xarray as xr


def warn_of_trace(method: Method, summary: Mapping[str, Any], trace: xr.DataTree) -> None:
    """Warn of everything that makes the draws doubtful."""
    lines = [*warnings_of(method, summary), *fit_warnings(method, trace)]
    if "posterior" in trace.children:
        cold = rung(trace)
        draws = flat_draws(cold["posterior"])
        try:
            draws = valid_of_each(draws, validity(cold))
            reason = f"they need {LEAST_DRAWS} valid draws of each chain, and one has {draws.shape[1]}."
        except UserError as error:
            draws, reason = draws[:, :0], str(error)
        if draws.shape[1] < LEAST_DRAWS and not method.kernel.optimises:
            lines.append(f"R-hat and ESS are unknown: {reason}")
        is_judged = draws.shape[1] >= LEAST_DRAWS and not method.kernel.optimises
        values, names, line = _judged(method.target, draws, by_predictions=is_judged)
        lines += draws_warnings(method, summary, values, names)
        lines += [f"sample: {line}"] * (line is not None)
    for line in lines:
        warnings.warn(line.removeprefix("sample: "), UserWarning, stacklevel=3)


def _judged(target: Target, draws: Draws, by_predictions: bool) -> tuple[Draws, Sequence[str], str | None]:
    """Return what draws are judged by, some coordinates or predictions of a network, their names, and a warning.

    The warning is None if a network is judged by its predictions, or the model is no network.
    """
    line = None
    if by_predictions and is_network(target.model) and np.isfinite(draws).all():
        try:
            found = predictions(target.model, target.data, draws)
            kept = that_vary(found)
            return found.values[..., kept], [found.names[place] for place in kept], None
        except UserError as error:
            line = f"R-hat and ESS are those of weights, which say little of a network: {error}"
    free = np.setdiff1d(np.arange(draws.shape[-1]), constant_coordinates(target.model))
    places = free[some_coordinates(len(free), diagnosed_coordinates(len(free), *draws.shape[:2]))]
    return draws[..., places], [target.model.names[place] for place in places], line
