"""Draws that the trace of a method has, in the coordinates in which its chains move."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from torch import Tensor

from mhrun.engine.method import Method
from mhrun.errors import Refusal, UserError
from mhrun.kernels import Unadjusted
from mhrun.models.parameters import parameters_of
from mhrun.store.draws import validity
from mhrun.store.netcdf import flat_draws


def cold_draws(method: Method, trace: xr.DataTree, count: int, *, fewest: int) -> Tensor | None:
    """Return draws of the chains of a dynamics at its lowest temperature, as `some_draws`.

    Returns:
        None also for another kernel than a dynamics, and for an optimiser.
    """
    kernel = method.kernel
    if not isinstance(kernel.of_a_chain, Unadjusted) or kernel.optimises or method.shape.thin is None:
        return None
    temperatures = method.plan.collected_controls.noise_temperature
    cold = np.flatnonzero(temperatures == temperatures.min())
    return some_draws(method, trace, cold, count, fewest=fewest)


def some_draws(
    method: Method, trace: xr.DataTree, chains: npt.NDArray[np.int64], count: int, *, fewest: int
) -> Tensor | None:
    """Return valid draws in the coordinates in which chains move (C, S, D), float64, evenly spaced.

    Args:
        method: whose steps have ended.
        trace: with its draws.
        chains: whose draws.
        count: about how many draws C S, if there are so many.
        fewest: None is returned if there are fewer, and if the trace does not say which are valid.
    """
    if "posterior" not in trace.children:
        return None
    try:
        of_chain = [np.flatnonzero(valid) for valid in validity(trace)[chains]]
        each = min(min(map(len, of_chain)), max(1, count // len(chains)))
        if each * len(chains) < max(1, fewest):
            return None
        places = np.stack([valid[np.linspace(0, len(valid) - 1, each).astype(int)] for valid in of_chain])
        read, among = np.unique(places, return_inverse=True)
        posterior = trace["posterior"].to_dataset().isel(draw=read, chain=chains).load()
        if len(read) > each:  # chains with other valid draws than one another
            draw = xr.DataArray(among.reshape(places.shape), dims=("chain", "draw"))
            posterior = posterior.isel(chain=xr.DataArray(np.arange(len(chains)), dims="chain"), draw=draw)
    except UserError:  # statistics of some draws were not kept
        return None
    draws = torch.from_numpy(np.ascontiguousarray(flat_draws(posterior), dtype=np.float64))
    parameters = parameters_of(method.target.model)
    try:
        return draws if parameters is None else parameters.theta(parameters.named(draws), "a draw")
    except Refusal:  # a chain that went to the edge of a constraint
        return None
