"""Where chains begin, and the scale of what they sample, from modes and their curvature."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.landscape.all_data import moved_to_all_data
from mhrun.engine.landscape.curvature import spectrum, standardised
from mhrun.engine.landscape.explore import Landscape, Search, explored
from mhrun.engine.landscape.known_modes import FEW_GRADIENTS
from mhrun.engine.landscape.normality import spread_of_log_ratio
from mhrun.engine.landscape.surface import Surface
from mhrun.engine.method import Method
from mhrun.engine.pilot.open_settings import leapfrog_is_open
from mhrun.kernels import ZigZag
from mhrun.random import Draws, Purpose, Streams
from mhrun.target.function_space import is_network
from mhrun.types.scale import Scale

_LARGEST_CONDITION = 1e7  # condition number above which some directions have no curvature but for rounding
# Of the log-ratio to a normal density, in nats: from which on the scale is in doubt, and up to which a posterior is
# nearly normal.
_LARGEST_SPREAD, _NEARLY_NORMAL = 2.0, 0.5
# A dense scale is the default for so few parameters, and for more if the curvature of a proper mode has at least this
# condition number in units of its diagonal: trajectories with a diagonal scale would be ten times as long.
_MOST_DENSE, _CORRELATED = 50, 100.0
_AUTOMATIC = (None, "auto")
# Of the evaluations of a run, that a search for another mode may take, and at most so many
_SEARCHED, _MOST_SEARCHED = 0.02, 20_000_000
_FURTHER = 8  # further first points, from which another mode is looked for
_SPREAD = 2.0  # posterior standard deviations of the points that chains begin at, about their modes
# Below the mode these points are at most so many times as far as those of a normal density, and so many nats more.
_STEEPER, _DEEPER = 2.0, 10.0


class ScaledStart(NamedTuple):
    """Where chains begin, and the scale of what they sample."""

    theta: Tensor  # (C, D)
    scale: Scale | None = None
    curvature: Tensor | None = None  # in scaled coordinates (D, D), if it is known
    condition: float | None = None  # the condition number of the curvature that the scale is from
    doubt: str | None = None  # why the scale may be far off: "flat" or "skewed"
    is_skewed: bool = False  # whether the posterior may be far from normal, though its scale may be known
    in_neck: bool = False  # whether the curvature is that of the neck of a funnel
    # Whether mode and curvature are of all data, as a part has hardly any of what matters
    whole: bool = False
    draws: Tensor | None = None  # (C, S, D), float64, of the coldest trajectories that judged the scale
    # The same with a diagonal scale, where a dense one of many parameters is taken for their correlations
    fallback: ScaledStart | None = None


def explored_for(method: Method, surface: Surface, theta: Tensor, key: int) -> Landscape:
    """Return the landscape that a method's chains begin in, see `mhrun.engine.landscape.explore.explored`.

    Args:
        method: whose chains they are.
        surface: of its target.
        theta: first points of the chains (C, D), or of each ladder.
        key: of the random numbers.
    """
    budget = max(FEW_GRADIENTS, min(_MOST_SEARCHED, int(_SEARCHED * method.reads)))
    return explored(surface, theta, key, Search(lambda: _further_points(method), budget))


def scaled_start(
    method: Method, found: Landscape, theta: Tensor, temperature: Tensor, key: int, rungs: int = 1
) -> ScaledStart:
    """Return points for the chains to begin at, the scale, and the curvature in scaled coordinates, if it is known.

    All rungs of a ladder begin at one mode. If each ladder began with as many chains at each mode, R-hat would not show
    that none of them ever crosses.

    Args:
        method: whose chains they are.
        found: the modes of its target, one for each ladder.
        theta: the chains' first points (C, D).
        temperature: of each chain (C,).
        key: of the random numbers.
        rungs: of the ladders that the chains are.
    """
    if not found.is_found:
        return ScaledStart(theta)
    start = ScaledStart(found.curved.modes.theta.to(theta.dtype).repeat_interleave(rungs, 0))
    if found.curved.curvature is not None:
        start = _with_scale(method, found, theta, temperature, key, rungs)
    if found.neck is not None:
        return _at_first_points(start, theta, is_judged=not method.kernel.follows)
    return start


def _at_first_points(start: ScaledStart, theta: Tensor, *, is_judged: bool) -> ScaledStart:
    """Return a start at the first points (C, D), with a scale of 1 if it has one, which draws are to judge."""
    start = start._replace(theta=theta, curvature=None, in_neck=True)
    if start.scale is None:
        return start
    doubt = "flat" if is_judged else None
    unit = unit_like(start.scale)
    return start._replace(scale=unit, condition=1.0, doubt=doubt, fallback=None)


def unit_like(scale: Scale) -> Scale:
    """Return a scale of 1, dense or diagonal as another one is."""
    dim = len(scale.center)
    return Scale(torch.zeros(dim), torch.eye(dim) if scale.dense else torch.ones(dim))


def _further_points(method: Method) -> Tensor | None:
    """Return points (K, D) where further chains would begin; None if these are given, and not random."""
    if method.starts is not None:
        return None
    chains = method.shape.chains
    with suppress(Exception):  # of a start for each chain, or of a class of the user's, which may raise any
        return method.first_points(chains + _FURTHER)[chains:]
    return None


def _with_scale(
    method: Method, found: Landscape, theta: Tensor, temperature: Tensor, key: int, rungs: int
) -> ScaledStart:
    """Return the start with the scale that the curvature gives."""
    dim, follows = method.target.dim, method.kernel.follows
    curved = found.curved._replace(proper=found.curved.proper and found.neck is None)
    assert curved.curvature is not None
    kind = _kind_of_scale(method, curved.curvature, proper=curved.proper)
    if follows and kind != "none" and not curved.proper:
        unit = torch.eye(dim) if kind == "dense" else torch.ones(dim)
        return ScaledStart(theta, Scale(torch.zeros(dim), unit))
    begins, surface, (modes, curvature, proper) = moved_to_all_data(found.surface, curved)
    assert curvature is not None
    eigenvalues, vectors = spectrum(curvature, proper=proper)
    root = torch.linalg.cholesky(vectors @ torch.diag(1 / eigenvalues) @ vectors.T)
    highest = modes.theta[modes.best].to(theta.dtype)  # of the data that the surface has
    best = begins[modes.best].to(theta.dtype)
    z = Draws(Streams(key, len(theta)), 0).normal(Purpose.INIT, dim).cpu()
    offsets = _SPREAD * temperature.sqrt()[:, None] * (z @ root.T)
    expected = 0.5 * _SPREAD**2 * temperature.cpu() * z.square().sum(1)
    begins = begins.double().cpu().repeat_interleave(rungs, 0)
    points = inside(surface, begins, offsets, theta, expected)
    if kind == "none":
        return ScaledStart(points, None, curvature, whole=surface.is_whole)
    condition = float(eigenvalues.max() / eigenvalues.min())
    doubt, spread = None, 0.0
    if not proper and condition > _LARGEST_CONDITION:  # else coordinates have different units
        doubt, spread = "flat", math.inf
    elif not follows and (spread := _spread(surface, highest, root, key)) > _LARGEST_SPREAD:
        doubt = "skewed"
    # A diagonal scale has the curvature of each coordinate with the others held fixed.
    diagonal = curvature.diagonal().abs().clamp_min(float(eigenvalues.min())).rsqrt()

    def scaled(factor: Tensor) -> ScaledStart:
        scale, matrix = Scale(best.cpu(), factor), factor if factor.dim() == 2 else torch.diag(factor)
        rounded = vectors @ torch.diag(eigenvalues) @ vectors.T
        curved = matrix.T @ rounded @ matrix
        skewed = spread > _NEARLY_NORMAL
        return ScaledStart(points, scale, curved, condition, doubt, skewed, whole=surface.is_whole)

    if kind != "dense":
        return scaled(diagonal)
    is_automatic = method.precondition in _AUTOMATIC and dim > _MOST_DENSE
    return scaled(root)._replace(fallback=scaled(diagonal) if is_automatic else None)


def _spread(surface: Surface, mode: Tensor, root: Tensor, key: int) -> float:
    """Return `spread_of_log_ratio`, divided by D / 200 if there are more parameters.

    That of regressions grows with D: it is 0.6, 0.9 and 5.4 of logistic ones of 20,000 data with 200, 300 and 1,000
    parameters.
    """
    return spread_of_log_ratio(surface, mode, root, key) / max(1.0, len(mode) / 200)


def _kind_of_scale(method: Method, curvature: Tensor, *, proper: bool) -> str:
    kernel = method.kernel
    # A zig-zag has the scale of its surrogate's reference, and a known noise that of theta.
    if isinstance(kernel, ZigZag) or (kernel.dynamics is not None and kernel.dynamics.known_noise):
        return "none"
    # A number is in the parameters' own units, whatever else is open, but for the length of a trajectory
    if method.precondition is None and not method.plan.is_open and not leapfrog_is_open(kernel):
        return "none"
    if method.precondition in _AUTOMATIC:
        # No test would reject a step that is far too long where a network's curvature is not that of its mode.
        if kernel.dynamics is not None and is_network(method.target.model):
            return "none"
        if method.target.dim <= _MOST_DENSE:
            return "dense"
        eigenvalues = torch.linalg.eigvalsh(standardised(curvature))
        correlated = proper and float(eigenvalues.max() / eigenvalues.min()) >= _CORRELATED
        return "dense" if correlated else "diagonal"
    return method.precondition


def inside(surface: Surface, modes: Tensor, offsets: Tensor, like: Tensor, expected: Tensor) -> Tensor:
    """Return modes + off (C, D), nearer to the mode where the density is not finite, or far below the expected.

    `expected` (C,) is how far below its mode a normal log density would be, in nats at temperature 1. In a curved ridge
    it falls by hundreds of nats more, and a chain that begins there rejects all moves.
    """
    share = torch.ones(len(modes), 1, dtype=torch.float64)
    height = surface.value_and_grad(modes.to(like))[0].cpu()
    for _ in range(10):
        points = (modes + share * offsets).to(like)
        value, _ = surface.value_and_grad(points)
        bad = ~(height - value.cpu() < _STEEPER * expected + _DEEPER * surface.temperature)
        if not bool(bad.any()):
            return points
        share[bad] /= 2
    share[bad] = 0.0
    return (modes + share * offsets).to(like)
