"""How rungs of an equi-energy ladder relate to the regions where their densities are flat, at their draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import xarray as xr

from mhrun.engine.diagnosis.kept_draws import some_draws
from mhrun.engine.method import Method
from mhrun.kernels import EquiEnergy

FLAT_REGIONS = "flat_regions"  # in a summary
_MAX_DRAWS, _MIN_DRAWS = 400, 100  # draws of each rung at which all data are evaluated
_TIMES, _ROWS = 1.0, 30_000_000  # evaluations: at most so many times those of the run, and at most so many
_AT_ONCE = 4_000_000  # data, so that what a model keeps of each fits into memory


class FlatRegions(NamedTuple):
    """Energies h at draws of the rungs, whose densities exp(-max(h, H_k) / T_k) are flat below H_k."""

    above: list[float]  # share of each rung's draws with h > H_k
    draws: int  # of each rung
    below: float  # H_0 less the lowest energy of the coldest rung's draws, in units of T_0; negative if none is below
    lowest: list[float]  # that draw, in the coordinates in which chains move


def flat_regions(method: Method, trace: xr.DataTree) -> FlatRegions | None:
    """Return the energies on all data at some draws, relative to the levels H_k.

    Args:
        method: whose steps have ended.
        trace: with its draws.

    Returns:
        None for another kernel than `EquiEnergy`, draws that were not kept or that are few, and data so many that
        evaluating them at 100 draws of each rung would take long.
    """
    kernel, target, shape = method.kernel, method.target, method.shape
    if not isinstance(kernel, EquiEnergy) or shape.thin is None or target.data.differs_by_chain:
        return None
    count = min(_MAX_DRAWS, int(min(_ROWS, _TIMES * method.reads) // (target.n * kernel.rungs)))
    if count < _MIN_DRAWS:
        return None
    draws = some_draws(method, trace, np.arange(shape.chains), count * kernel.rungs, fewest=1)
    if draws is None:
        return None
    temperature = torch.as_tensor(method.plan.collected_controls.temperature, device=target.device)
    levels = kernel.levels(target, temperature)[:, : kernel.rungs].cpu()
    points = draws.reshape(-1, target.dim).to(device=target.device, dtype=method.dtype)
    parts = [
        kernel.energies.of(target, part, None, None)[0].double().cpu()
        for part in points.split(max(1, _AT_ONCE // target.n))
    ]
    energy = torch.cat(parts).reshape(len(draws), -1)
    rung = torch.arange(len(draws)) % kernel.rungs
    above = energy > levels.gather(1, rung[:, None])
    cold = energy[rung == 0]
    place = int(cold.argmin())
    return FlatRegions(
        [float(above[rung == k].double().mean()) for k in range(kernel.rungs)],
        int((rung == 0).sum()) * energy.shape[1],
        float(levels[0, 0] - cold.min()) / float(temperature.min()),
        draws[rung == 0].reshape(-1, target.dim)[place].tolist(),
    )
