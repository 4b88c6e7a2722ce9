"""Necks of funnels: modes that are high and have hardly any mass, beside the mass near the starting points."""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from torch import Tensor

from mhrun.engine.landscape.curvature import hessian, units_of
from mhrun.engine.landscape.laplace import Spectrum
from mhrun.engine.landscape.modes import Mode
from mhrun.engine.landscape.surface import Surface

# Starting points, and gradients of single data that may be evaluated for them
_TRIED, _AFFORDABLE = 8, 20_000_000
# Nats by which the mode may be higher, for each parameter: no start is a million times as wide. How many the density
# may fall within a width, and how often a width is divided by 4 until it does.
_WIDER, _FALL, _SHRUNK = 14.0, 1.5, 12
_NECK = 10.0  # nats of mass that a starting point has more than the highest mode, from which on chains begin there


def nats_below_starts(surface: Surface, modes: Mode, curvature: Tensor, theta: Tensor) -> float | None:
    """Return by how many nats the mass at the highest mode is below that at the best of the starting points.

    This happens in the neck of a funnel, which is high and has hardly any mass: chains that begin there take long to
    leave it. The mass at a point is exp(f / T) times its widths in the directions of its curvature, which are those by
    the curvature as at a mode, but no wider than the density is found to be: within a width it falls by 1.5 nats at
    most on one side.

    Args:
        surface: of all data; what is evaluated is added to its count.
        modes: where ascents ended.
        curvature: minus the Hessian (D, D) at the highest one, which is proper.
        theta: the starting points (C, D).

    Returns:
        None where the mode has the mass, or no less than e^-10 of it, and with many data or parameters.
    """
    dim, temperature = len(curvature), surface.temperature
    of_a_start = 4 * dim * surface.size  # gradients of single data
    if surface.size < surface.target.n or of_a_start > _AFFORDABLE:
        return None
    tried = theta[: max(1, min(_TRIED, _AFFORDABLE // (10 * of_a_start)))].unique(dim=0)
    heights = (surface.value_and_grad(tried)[0] / temperature).nan_to_num(-math.inf, -math.inf, -math.inf)
    spectrum = Spectrum.of(curvature)
    log_widths = spectrum.log_width + float(spectrum.units.log().sum())
    of_mode = modes.height / temperature + log_widths + 0.5 * dim * math.log(temperature)
    mode, nats = modes.theta[modes.best].double().cpu(), -math.inf
    for start, height in zip(tried, heights.tolist(), strict=True):
        if modes.height / temperature - height > _WIDER * dim:
            continue
        # A model need not be defined beside a start, and a class of the user's may raise any exception there.
        with suppress(Exception):
            widths = _widths(surface, start, height, mode)
            if widths is not None:
                nats = max(nats, height + float(widths.log().sum()) - of_mode)
    return nats if nats > _NECK else None


def _widths(surface: Surface, start: Tensor, height: float, mode: Tensor) -> Tensor | None:
    """Return how wide the density is at a point (D,) in the directions of its curvature, (D,); None if that fails."""
    curvature = hessian(surface, start)
    if not bool(curvature.isfinite().all()) or not bool(curvature.diagonal().abs().max() > 0):
        return None
    units, center = units_of(curvature), start.double().cpu()
    eigenvalues, vectors = torch.linalg.eigh(units[:, None] * curvature.double() * units)
    directions = (units[:, None] * vectors).T  # (D, D)
    farthest = 10 * (float((center - mode).norm()) + 1) / directions.norm(dim=1)
    widths = torch.minimum(math.sqrt(surface.temperature) * eigenvalues.abs().rsqrt(), farthest)
    for _ in range(_SHRUNK):
        offsets = widths[:, None] * directions
        points = torch.cat([center + offsets, center - offsets]).to(start)
        found = (surface.value_and_grad(points)[0].cpu() / surface.temperature).reshape(2, -1)
        is_wide = found.nan_to_num(-math.inf, -math.inf, -math.inf).amax(0) < height - _FALL
        if not bool(is_wide.any()):
            break
        widths[is_wide] /= 4
    # The volume of the widths is that of the box of the directions, whose determinant is that of the units.
    return widths * units
