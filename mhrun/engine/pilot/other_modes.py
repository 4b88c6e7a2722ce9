"""Another mode of the posterior, which chains that begin at one point may never visit."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.curvature import below_mode, hessian, is_degenerate
from mhrun.engine.modes import Mode, find_modes
from mhrun.engine.surface import Surface
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.target.function_space import is_network

# Of the points that ascents begin at, in standard deviations at the mode
_DISTANCES = (5.0, 10.0, 20.0, 40.0)
_TOGETHER = 4  # ascents at a time
_MAX_DATA, _MAX_PARAMETERS = 20_000, 50  # data and parameters up to which ascents are cheap
_PARAMETERS_A_TURN = 5  # for each of which ascents begin at all distances, on both sides
FEW_GRADIENTS = 2_000_000
"""Gradients of the log-likelihoods of single data that are affordable for any method."""
_APART = 4.0  # standard deviations of either mode between two that are different
_NATS = 0.05  # below its mode as a quadratic, that an end is at most
# A mode is named if it has this share of the posterior, or adds this share to a variance: a thousandth of the draws at
# thirty standard deviations nearly doubles one.
SHARE, _VARIANCE = 0.01, 0.1


class OtherMode(NamedTuple):
    """A mode at which no chain begins."""

    theta: tuple[float, ...]  # (D,)
    share: float  # of its mass in the mass of both, by Laplace's approximation
    begun: tuple[tuple[float, ...], ...]  # (K, D), the modes at which chains begin


def other_mode(
    surface: Surface,
    modes: Mode,
    curvature: Tensor,
    key: int,
    further: Tensor | None = None,
    budget: int = FEW_GRADIENTS,
) -> OtherMode | None:
    """Return the mode with the largest mass that ascents from far away end at, if no chain begins at it.

    Chains that all begin near one mode have an R-hat of 1 whether or not they ever visit another. So ascents are made
    from points 5, 10, 20 and 40 standard deviations from the highest mode, in random directions and their opposites:
    eight of them, and eight more for every five parameters above five. A mode at a fixed place is the more standard
    deviations away the more data there are, so that there are ascents from further first points of chains, and from the
    mode with other signs: of each coordinate, and of all.

    A mode is another one if it is 4 standard deviations from each at which chains begin, by the curvature at either,
    and has at least 1 % of the mass of both, or so much that it adds 10 % to a variance. With many data or parameters,
    and for networks, nothing is tried: ascents would cost more than the pilot. A mode that no ascent ends at is not
    found.

    Args:
        surface: the log posterior; what is evaluated is added to its count.
        modes: at which the chains begin; the highest is proper.
        curvature: minus the Hessian (D, D) at the highest one.
        key: of the random directions.
        further: points (K, D) where further chains would begin, if there are any.
        budget: gradients of single data, after which no other ascent begins from far away, and as many from elsewhere.
    """
    if surface.target.n > _MAX_DATA or len(curvature) > _MAX_PARAMETERS or is_network(surface.target.model):
        return None
    found: list[Mode] = []
    # A model need not be defined so far out, and a class of the user's may raise any exception there.
    with suppress(Exception):
        root = torch.linalg.cholesky(curvature.double().cpu())
        found += _from_far_away(surface, modes, root, key, budget)
    before, points = surface.n_grad, _reflected(surface, modes, curvature)
    if further is not None and len(further.unique(dim=0)) > 1:
        points = torch.cat([points, further.to(points)])
    for few in points.split(_TOGETHER):
        with suppress(Exception):
            if len(few) and surface.n_grad - before <= budget:
                found.append(find_modes(surface, few.to(modes.theta)))
    with suppress(Exception):
        return _best_of(surface, modes, curvature, found)
    return None


def _best_of(surface: Surface, modes: Mode, curvature: Tensor, found: list[Mode]) -> OtherMode | None:
    """Return the mode with the largest mass, of those that are others and matter; None if there is none."""
    if not found:
        return None
    begun = modes.theta.double().cpu().unique(dim=0)
    best, others = modes.theta[modes.best].double().cpu(), list[tuple[float, Tensor]]()
    ends = torch.cat([few.theta for few in found]).double().cpu()
    for end, height in zip(ends, [height for few in found for height in few.heights], strict=True):
        offsets = begun - end
        if not bool(end.isfinite().all()) or float(_lengths(offsets, curvature).min()) < _APART:
            continue
        at_end = hessian(surface, end.to(modes.theta))
        if not bool(at_end.isfinite().all()) or is_degenerate(at_end):
            continue
        _, gradient = surface.value_and_grad(end[None].to(modes.theta))
        apart = float(_lengths(offsets, at_end).min()) >= _APART
        if apart and below_mode(gradient[0].cpu(), at_end) < _NATS:
            volumes = 0.5 * (torch.logdet(curvature.double().cpu()) - torch.logdet(at_end))
            mass = (height - modes.height) / surface.temperature + float(volumes)
            share = 1 / (1 + math.exp(-mass)) if mass > -700 else 0.0
            added = share * float(_lengths(end[None] - best, curvature)) ** 2 / surface.temperature
            if share >= SHARE or added >= _VARIANCE:
                others.append((share, end))
    if not others:
        return None
    share, end = max(others, key=lambda pair: pair[0])
    return OtherMode(tuple(end.tolist()), share, tuple(tuple(mode) for mode in begun.tolist()))


def _from_far_away(surface: Surface, modes: Mode, root: Tensor, key: int, budget: int) -> list[Mode]:
    """Return where ascents end that begin away from the highest mode; `root` is that of its curvature (D, D).

    A random direction has less of any one the more parameters there are, so that more of them are tried.
    """
    best, dim, before = modes.theta[modes.best].double().cpu(), len(root), surface.n_grad
    found: list[Mode] = []
    for turn in range(math.ceil(dim / _PARAMETERS_A_TURN)):
        z = Draws(Streams(derive_key(key, "other modes"), len(_DISTANCES)), turn).normal(Purpose.INIT, dim)
        directions = torch.linalg.solve_triangular(root.T, z.cpu().T, upper=True).T
        directions /= z.cpu().norm(dim=1, keepdim=True)
        away = torch.tensor(_DISTANCES)[:, None] * math.sqrt(surface.temperature) * directions
        points = torch.cat([best + away, best - away]).to(modes.theta)
        points = points[surface.value_and_grad(points)[0].isfinite().to(points.device)]
        found += [find_modes(surface, few) for few in points.split(_TOGETHER) if len(few)]
        if surface.n_grad - before > budget:
            break
    return found


def _reflected(surface: Surface, modes: Mode, curvature: Tensor) -> Tensor:
    """Return the highest mode with other signs (K, D), where that is not near it."""
    best = modes.theta[modes.best].double().cpu()
    signs = 1.0 - 2.0 * torch.cat([torch.ones(1, len(best)), torch.eye(len(best))]).to(best)
    points = (signs * best).unique(dim=0)
    return points[_lengths(points - best, curvature) > _APART * math.sqrt(surface.temperature)]


def _lengths(offsets: Tensor, curvature: Tensor) -> Tensor:
    """Return the lengths (K,) of offsets (K, D) in standard deviations at T = 1."""
    return (offsets @ curvature.double().cpu() * offsets).sum(1).clamp_min(0.0).sqrt()
