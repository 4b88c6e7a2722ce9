"""The draws of a trace: their steps, and which of them follow the target."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mhrun.errors import UserError
from mhrun.store.netcdf import LABELS, THIN, THIN_STATS, WARMUP

if TYPE_CHECKING:
    import xarray as xr

Steps = npt.NDArray[np.int64]
_UNLABELLED = re.compile(r"_dim_\d+$")  # the name of a dimension that has none


def steps_of_draws(trace: xr.DataTree) -> Steps:
    """Return the step of each draw after burn-in (S,); steps count from 1, and burn-in comes first.

    A trace that was cut along ``draw`` has the steps of what is left. Without draws there are none.
    """
    if "posterior" not in trace.children:
        return np.empty(0, np.int64)
    posterior = trace["posterior"]
    if "step" in posterior.coords:  # a schedule collects them
        steps: Steps = posterior["step"].to_numpy()
        return steps
    return _steps(trace, posterior["draw"].to_numpy(), THIN)


def places_of_draws(trace: xr.DataTree) -> Steps:
    """Return the place of each draw among the statistics after burn-in (S,).

    Raises:
        UserError: the statistics of some draws were not kept.
    """
    steps = steps_of_draws(trace)
    recorded = _steps(trace, trace["sample_stats"]["draw"].to_numpy(), THIN_STATS)
    places = np.searchsorted(recorded, steps).clip(max=len(recorded) - 1)
    if not np.array_equal(recorded[places], steps):
        raise UserError(
            "the trace lacks the statistics of some draws: thin must be a multiple of thin_stats = "
            f"{trace.attrs[THIN_STATS]}; thin_stats=1 keeps all."
        )
    return places


def validity(trace: xr.DataTree) -> npt.NDArray[np.bool_]:
    """Return whether each draw after burn-in follows the target (C, S), as ``sample_stats["valid"]`` says.

    Raises:
        UserError: only some do, and the statistics of some draws were not kept.
    """
    shape = (trace["posterior"].sizes["chain"], trace["posterior"].sizes["draw"])
    if "sample_stats" not in trace.children or "valid" not in trace["sample_stats"]:  # of another library
        return np.ones(shape, bool)
    valid: npt.NDArray[np.bool_] = trace["sample_stats"]["valid"].to_numpy().astype(bool)
    return np.ones(shape, bool) if valid.all() else valid[:, places_of_draws(trace)]


def in_order_of_run(posterior: xr.Dataset) -> xr.Dataset:
    """Return the draws with their dimensions in the order of the run, which `sel` or `reindex` may have changed.

    Labels that the run does not have stay behind the others. Dimensions without labels, NAME_dim_0 and so on, are in
    the order of their numbers. A dimension of whose labels the trace keeps no order stays as it is.
    """
    labels = json.loads(posterior.attrs.get(LABELS, "{}"))
    for name, coordinate in posterior.coords.items():
        if coordinate.dims != (name,) or name in ("chain", "draw") or len(coordinate) < 2:
            continue
        present = coordinate.to_numpy().tolist()
        if name in labels:
            place = {label: number for number, label in enumerate(labels[name])}
            order = sorted(range(len(present)), key=lambda k: place.get(present[k], len(place)))
        elif _UNLABELLED.search(str(name)) and coordinate.dtype.kind in "iu":
            order = sorted(range(len(present)), key=present.__getitem__)
        else:
            continue
        if order != list(range(len(order))):
            posterior = posterior.isel({name: order})
    return posterior.transpose("chain", "draw", ...)


def _steps(trace: xr.DataTree, rows: Steps, thin: str) -> Steps:
    """Return the steps of rows, which are every so many steps, numbered from the first after burn-in."""
    warmup, interval = int(trace.attrs[WARMUP]), int(trace.attrs[thin])
    return (warmup // interval + 1 + rows) * interval


def stopped_chains(trace: xr.DataTree) -> npt.NDArray[np.bool_]:
    """Return which chains stopped at a value that was not finite (C,): what they had before may be of any size.

    At its end the steps of such a chain diverge and are not valid; a test rejects a candidate that is not finite, and
    its chain goes on.
    """
    statistics = trace.children.get("sample_stats")
    if statistics is None or "diverging" not in statistics or "valid" not in statistics:
        return np.zeros(trace["posterior"].sizes["chain"], bool)
    diverging, valid = (statistics[name].to_numpy()[:, -1:].astype(bool) for name in ("diverging", "valid"))
    stopped: npt.NDArray[np.bool_] = (diverging & ~valid).any(1)
    return stopped
