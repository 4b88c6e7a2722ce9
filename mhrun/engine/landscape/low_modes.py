"""Modes that have hardly a share of the posterior, where ascents end."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.landscape.curvature import hessian
from mhrun.engine.landscape.laplace import Spectrum
from mhrun.engine.landscape.modes import Mode
from mhrun.engine.landscape.surface import Surface

_MAX_NATS = 50.0  # of the mass of a mode below that of the highest, up to which chains may begin there
_FLAT_WIDTH = 1e3  # of a direction without curvature, in widths of the widest direction of the highest mode


class Moved(NamedTuple):
    """What became of ascents to modes that have hardly a share of the posterior."""

    ascents: int  # that ended at one
    of: int  # ascents
    nats: float  # minus the log of the share of the largest of them


def without_low_modes(surface: Surface, modes: Mode, curvature: Tensor) -> tuple[Mode, Moved | None]:
    """Return modes with those that have hardly a share of the posterior replaced by the highest one.

    The mass of a mode is exp(f / T) det(H / T)^(-1/2), by Laplace's approximation, with f on all data: chains stay at
    the mode where they begin, and e^-50 of the posterior is worth none of them. A direction in which a low mode has no
    curvature, as at the edge of a constraint, counts as a thousand times as wide as the widest of the highest mode.
    Ascents end at such modes from poor starting points, such as draws from a prior.

    Args:
        surface: on which the ascents were; what is evaluated is added to its count.
        modes: where they ended.
        curvature: minus the Hessian (D, D) at the highest one.

    Returns:
        The modes, and what became of the low ones, if there are any.
    """
    temperature, count = surface.temperature, min(len(modes.heights), len(modes.theta))
    ends = modes.theta[:count]
    # A mode of less height than this has less mass unless it is far wider: its curvature decides.
    low = [c for c in range(count) if modes.height - modes.heights[c] > _MAX_NATS * temperature]
    if not low:
        return modes, None
    heights = surface.on_all_data(ends[[modes.best, *low]]).tolist()
    spectrum = Spectrum.of(curvature)
    without, nats = [], []
    for c, height in zip(low, heights[1:], strict=True):
        at_end = hessian(surface, ends[c].to(modes.theta.dtype))
        if not bool(at_end.isfinite().all()):
            continue
        # T enters both volumes alike.
        narrower = spectrum.log_width - spectrum.log_width_of(at_end, _FLAT_WIDTH)
        if (below := (heights[0] - height) / temperature + narrower) > _MAX_NATS:
            without.append(c)
            nats.append(below)
    if not without:
        return modes, None
    is_low = torch.tensor([c % count in without for c in range(len(modes.theta))], device=modes.theta.device)
    theta = torch.where(is_low[:, None], modes.theta[modes.best], modes.theta)
    return modes._replace(theta=theta), Moved(len(without), count, min(nats))
