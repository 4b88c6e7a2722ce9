"""Where chains begin, and the scale of what they sample, from modes and their curvature."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.curvature import spectrum, standardised
from mhrun.engine.limits import most_scaled
from mhrun.engine.method import Method
from mhrun.engine.modes import CurvedModes, find_curved_modes, find_modes
from mhrun.engine.pilot.all_data import moved_to_all_data, without_absent
from mhrun.engine.pilot.heavy_tails import HeavyTail, heavy_tail
from mhrun.engine.pilot.impropriety import direction_in_words, flat_direction
from mhrun.engine.pilot.low_modes import Moved, nats_below_starts, without_low_modes
from mhrun.engine.pilot.normality import spread_of_log_ratio
from mhrun.engine.pilot.open_settings import leapfrog_is_open
from mhrun.engine.pilot.other_modes import FEW_GRADIENTS, OtherMode, other_mode
from mhrun.engine.pilot.rays import Beyond, along_rays
from mhrun.engine.surface import Surface
from mhrun.kernels import ZigZag
from mhrun.models.parameters import coordinate_names
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
    flat_along: str | None = None  # a direction in which the log posterior does not fall off
    is_density: bool = False  # whether it levels off at 0, as a density does whose logarithm was not taken
    beyond: Beyond | None = None  # mass far from the highest mode
    highest: Tensor | None = None  # (D,), the highest mode
    heavy: HeavyTail | None = None  # a direction in which it falls off so slowly that it has no variance
    other: OtherMode | None = None  # at which no chain begins
    neck: float | None = None  # nats by which the highest mode has less mass than the starting points
    moved: Moved | None = None  # what became of ascents to modes that have hardly a share of the posterior
    # Whether mode and curvature are of all data, as a part has hardly any of what matters
    whole: bool = False
    draws: Tensor | None = None  # (C, S, D), float64, of the coldest trajectories that judged the scale
    # The same with a diagonal scale, where a dense one of many parameters is taken for their correlations
    fallback: ScaledStart | None = None


def scaled_start(
    method: Method, surface: Surface, theta: Tensor, temperature: Tensor, key: int, rungs: int = 1
) -> ScaledStart:
    """Return points for the chains to begin at, the scale, and the curvature in scaled coordinates, if it is known.

    All rungs of a ladder begin at one mode. If each ladder began with as many chains at each mode, R-hat would not show
    that none of them ever crosses.

    Args:
        method: whose chains they are.
        surface: of its target.
        theta: the chains' first points (C, D).
        temperature: of each chain (C,).
        key: of the random numbers.
        rungs: of the ladders that the chains are.
    """
    if method.target.dim > most_scaled(method.target.model):
        ends = find_modes(surface, theta[::rungs]).theta.repeat_interleave(rungs, 0)
        return ScaledStart(ends.to(theta.dtype) if bool(ends.isfinite().all()) else theta)
    surface, curved = without_absent(surface, find_curved_modes(surface, theta[::rungs]))
    modes, curvature, proper = curved
    if not bool(modes.theta.isfinite().all()):
        return ScaledStart(theta)
    moved = neck = None
    if proper and curvature is not None:  # the highest point of a ridge without an end is no mode
        modes, moved = without_low_modes(surface, modes, curvature)
        curved = curved._replace(modes=modes)
        neck = nats_below_starts(surface, modes, curvature, theta)
    direction = flat_direction(surface, modes.theta[modes.best], curvature, proper=proper)
    start = ScaledStart(modes.theta.to(theta.dtype).repeat_interleave(rungs, 0))
    if curvature is not None:
        trusted = curved._replace(proper=proper and neck is None)
        start = _with_scale(method, surface, trusted, theta, temperature, key, rungs)
    start, highest = start._replace(moved=moved, neck=neck), modes.theta[modes.best]
    if neck is not None:
        return _at_first_points(start, theta, is_judged=not method.kernel.follows)
    beyond, plateau, is_density = None, None, False
    if proper and curvature is not None:
        beyond, plateau, is_density = along_rays(surface, highest, modes.height, curvature, key)
    if direction is not None or (direction := plateau) is not None:
        words = direction_in_words(direction, coordinate_names(method.target.model))
        return start._replace(flat_along=words, is_density=is_density)
    if proper and curvature is not None:
        heavy = heavy_tail(surface, highest, curvature)
        other = other_mode(surface, modes, curvature, key, _further_points(method), _search_budget(method))
        start = start._replace(heavy=heavy, other=other, beyond=beyond, highest=highest)
    return start


def _at_first_points(start: ScaledStart, theta: Tensor, *, is_judged: bool) -> ScaledStart:
    """Return a start at the first points (C, D), with a scale of 1 if it has one, which draws are to judge."""
    if start.scale is None:
        return start._replace(theta=theta, curvature=None)
    doubt = "flat" if is_judged else None
    unit = unit_like(start.scale)
    return start._replace(theta=theta, scale=unit, curvature=None, condition=1.0, doubt=doubt, fallback=None)


def unit_like(scale: Scale) -> Scale:
    """Return a scale of 1, dense or diagonal as another one is."""
    dim = len(scale.center)
    return Scale(torch.zeros(dim), torch.eye(dim) if scale.dense else torch.ones(dim))


def _search_budget(method: Method) -> int:
    """Return the gradients of single data that a search for another mode may take: a small part of the run's."""
    return max(FEW_GRADIENTS, min(_MOST_SEARCHED, int(_SEARCHED * method.reads)))


def _further_points(method: Method) -> Tensor | None:
    """Return points (K, D) where further chains would begin; None if these are given, and not random."""
    if method.starts is not None:
        return None
    chains = method.shape.chains
    with suppress(Exception):  # of a start for each chain, or of a class of the user's, which may raise any
        return method.first_points(chains + _FURTHER)[chains:]
    return None


def _with_scale(
    method: Method,
    surface: Surface,
    curved: CurvedModes,
    theta: Tensor,
    temperature: Tensor,
    key: int,
    rungs: int,
) -> ScaledStart:
    """Return the start with the scale that the curvature gives."""
    dim, follows = method.target.dim, method.kernel.follows
    assert curved.curvature is not None
    kind = _kind_of_scale(method, curved.curvature, proper=curved.proper)
    if follows and kind != "none" and not curved.proper:
        unit = torch.eye(dim) if kind == "dense" else torch.ones(dim)
        return ScaledStart(theta, Scale(torch.zeros(dim), unit))
    begins, surface, (modes, curvature, proper) = moved_to_all_data(surface, curved)
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
