"""Candidates of an acceptance test at draws that a trace has."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from mhrun.engine.diagnosis.kept_draws import some_draws
from mhrun.engine.method import Method
from mhrun.kernels import MetropolisHastings
from mhrun.random import Draws, Streams, derive_key
from mhrun.store.netcdf import STEP_SIZE
from mhrun.target.function_space import is_network
from mhrun.types import Controls, Evaluation

MIN_MOVES = 20  # moves from which anything is estimated


class Moves(NamedTuple):
    """Moves that a chain may make."""

    origin: Evaluation  # at draws (R, D)
    candidate: Tensor  # (R, D)
    controls: Controls  # (R,) each
    draws: Draws  # of which a decision is


def moves(method: Method, trace: xr.DataTree, count: int) -> Moves | None:
    """Return moves from some draws of the coldest chains.

    Args:
        method: whose steps have ended.
        trace: with its draws.
        count: about how many.

    Returns:
        None for another kernel of a chain, or of a rung, than Metropolis-Hastings, for proposals with gradients, for
        networks, and for fewer than `MIN_MOVES`.
    """
    kernel, target = method.kernel.of_a_chain, method.target
    if not isinstance(kernel, MetropolisHastings) or kernel.proposal.gradients or method.shape.thin is None:
        return None
    if is_network(target.model) or target.data.differs_by_chain or count < MIN_MOVES:
        return None
    at = method.plan.collected_controls
    cold = np.flatnonzero(at.temperature == at.temperature.min())[:count]
    found = some_draws(method, trace, cold, count, fewest=MIN_MOVES)
    if found is None:
        return None
    points = found.reshape(-1, target.dim).to(device=target.device, dtype=method.dtype)
    each = found.shape[1]
    step_size = at.step_size[-1].numpy()
    if method.plan.adapts:  # the plan has the step size at which tuning begins
        step_size = np.atleast_1d(trace.attrs[STEP_SIZE])
    controls = Controls(
        *(
            torch.as_tensor(values[cold], dtype=torch.float64, device=target.device).repeat_interleave(each)
            for values in (step_size, at.temperature, at.noise_temperature)
        )
    )
    streams = Draws(Streams(derive_key(method.seed, "term noise"), len(points), target.device), 1)
    origin = kernel.pairing.start(target, points, streams)
    return Moves(origin, kernel.proposal.sample(origin, controls, streams), controls, streams)
