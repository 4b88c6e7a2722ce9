"""Traces as NetCDF4 in the InferenceData schema, which xarray and ArviZ open as they are.

Groups are ``posterior`` and ``sample_stats`` (chain, draw), and the same for the burn-in with the prefix ``warmup_``.
The posterior holds theta (chain, draw, parameter) or, for a model with named parameters, each parameter in the user's
coordinates (chain, draw, ...), in the order of the attribute ``parameters``. Other dimensions are NAME_dim_0, ... or
the parameter's own `dims`, with their labels as coordinates. For wide models statistics may be kept more often than
theta; the two groups then have different draws. Group ``monitor`` (chain, monitor_run) has the metrics computed during
the run, with the ``step`` of each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mhrun.array_types import Array
from mhrun.models.axes import Axis
from mhrun.models.parameters import Parameters, flat_names

if TYPE_CHECKING:
    import xarray as xr


TRACE = "trace.nc"
WARMUP, THIN, THIN_STATS = "warmup", "thin", "thin_stats"  # attributes of a trace: which steps its rows are
STEP_SIZE = "step_size"  # attribute of a trace: the step size of each chain in the last step
LABELS = "labels"  # attribute of a posterior: the labels of each dimension in the order of the run, as JSON
LAYERS = "layers"  # attribute of a trace: the layers of its torch module, as text
FIELDS = "fields"  # attribute of a trace: the fields of the data that its model read
KIND = "target"  # attribute of a trace: exact or approximate, see `mhrun.kernels.stationary.Samples.kind`
TEMPERATURE = "temperature"  # attribute of a trace: T at the last step; of a ladder, that of its coldest rung
TEMPER = "temper"  # attribute of a trace: whether T acts on the posterior or on the likelihood alone
PILOT_FOUND = "pilot"  # attribute of a trace: what a pilot found, as JSON
N_DATA = "n_data"  # attribute of a trace: the number of data of its target
KINETIC = "kinetic_temperature"  # attribute of a trace and in a summary, see `mhrun.engine.diagnosis.kinetic`
SEPARATE = "separate_gradients"  # attribute of a trace: n_lik + this times n_grad are its evaluations
COLLECTED = "collected"  # in a summary: the steps that a schedule collects


class Shape(NamedTuple):
    """Dimensions of a trace."""

    chains: int
    parameters: Sequence[str]
    warmup: int  # steps of burn-in
    steps: int  # steps after it
    thin: int | tuple[int, ...] | None  # theta is kept at every thin-th step, at these steps, or never
    # (with a list of steps, the trace records the step of each draw)
    thin_stats: int | None = None  # statistics are kept at every thin_stats-th step; None: as theta
    layout: Parameters | None = None  # the named parameters that theta is written as; None: as theta

    @property
    def stats_thin(self) -> int:
        """The steps between two kept statistics."""
        if self.thin_stats is not None:
            return self.thin_stats
        return self.thin if isinstance(self.thin, int) else 1

    def kept(self, first_step: int, steps: int) -> Array:
        """Return which of the steps from `first_step` on keep their theta, counted from 0."""
        if self.thin is None:
            return np.empty(0, np.int64)
        if isinstance(self.thin, int):
            return np.arange(-first_step % self.thin, steps, self.thin)
        places = np.asarray(self.thin, np.int64) - first_step
        return places[(places >= 0) & (places < steps)]

    @property
    def total(self) -> int:
        """Number of all steps."""
        return self.warmup + self.steps


def open_trace(folder: Path, *, cache: bool = True) -> xr.DataTree:
    """Open the trace of a method's folder; arrays are read lazily, and kept in memory if `cache`."""
    import xarray as xr

    from mhrun.store.reading import TraceEngine

    return xr.open_datatree(folder / TRACE, engine=TraceEngine, cache=cache)


def flat_draws(posterior: Any) -> Array:
    """Return the draws (C, S, P) of a group ``posterior``: theta, or the numbers of all named parameters in order."""
    if "theta" in posterior and "parameters" not in posterior.attrs:
        draws: Array = posterior["theta"].to_numpy()
        return draws
    parts = [posterior[name].to_numpy() for name in posterior.attrs["parameters"].split()]
    return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=-1)


def parameter_names(posterior: Any) -> list[str]:
    """Return the names of the P numbers of a draw, as those of the model, from a group ``posterior``."""
    if "theta" in posterior and "parameters" not in posterior.attrs:
        return [str(name) for name in posterior["parameter"].to_numpy()]
    names: list[str] = []
    for name in posterior.attrs["parameters"].split():
        array = posterior[name]
        axes = [Axis(str(dim), tuple(array[dim].to_numpy().tolist())) for dim in array.dims[2:]]
        names += flat_names(name, array.shape[2:], tuple(axes))
    return names
