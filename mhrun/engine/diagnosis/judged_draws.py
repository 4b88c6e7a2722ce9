"""The draws of a trace by which R-hat and ESS are judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mhrun.diagnostics.chains import (
    LEAST_DRAWS,
    ChainDraws,
    diagnosed_coordinates,
    some_coordinates,
    valid_of_each,
)
from mhrun.diagnostics.ladders import rung
from mhrun.engine.method import Method
from mhrun.errors import UserError
from mhrun.models.parameters import constant_coordinates
from mhrun.store.draws import validity
from mhrun.store.netcdf import flat_draws
from mhrun.target import Target
from mhrun.target.function_space import is_network, predictions, that_vary

if TYPE_CHECKING:
    import xarray as xr


class JudgedDraws(NamedTuple):
    """Some coordinates of draws, or of a network its predictions."""

    values: ChainDraws  # (C, S, D)
    names: Sequence[str]  # D
    notes: list[str]  # why they cannot be judged, or not by predictions

    @property
    def can_be_judged(self) -> bool:
        """Return whether they are enough for R-hat and ESS, finite, and of any coordinate."""
        enough = self.values.shape[1] >= LEAST_DRAWS and self.values.shape[-1] > 0
        return enough and bool(np.isfinite(self.values).all())


def judged_draws(method: Method, trace: xr.DataTree) -> JudgedDraws | None:
    """Return the draws of a trace by which it is judged: valid ones of the coldest rung; None if it has none."""
    if "posterior" not in trace.children:
        return None
    cold, notes = rung(trace), []
    draws = flat_draws(cold["posterior"])
    try:
        draws = valid_of_each(draws, validity(cold))
        reason = f"they need {LEAST_DRAWS} valid draws of each chain, and one has {draws.shape[1]}."
    except UserError as error:
        draws, reason = draws[:, :0], str(error)
    if draws.shape[1] < LEAST_DRAWS and not method.kernel.optimises:
        notes.append(f"R-hat and ESS are unknown: {reason}")
    by_predictions = draws.shape[1] >= LEAST_DRAWS and not method.kernel.optimises
    found = _judged(method.target, draws, by_predictions=by_predictions)
    return found._replace(notes=notes + found.notes)


def _judged(target: Target, draws: ChainDraws, by_predictions: bool) -> JudgedDraws:
    """Return what draws are judged by, some coordinates or predictions of a network.

    It has a note if a network is judged by its weights.
    """
    notes = []
    if by_predictions and is_network(target.model) and np.isfinite(draws).all():
        try:
            found = predictions(target.model, target.data, draws)
            kept = that_vary(found)
            return JudgedDraws(found.values[..., kept], [found.names[place] for place in kept], [])
        except UserError as error:
            notes = [f"R-hat and ESS are those of weights, which say little of a network: {error}"]
    free = np.setdiff1d(np.arange(draws.shape[-1]), constant_coordinates(target.model))
    places = free[some_coordinates(len(free), diagnosed_coordinates(len(free), *draws.shape[:2]))]
    return JudgedDraws(draws[..., places], [target.model.names[place] for place in places], notes)
