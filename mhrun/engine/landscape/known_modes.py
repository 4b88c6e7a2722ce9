"""The modes of the posterior that are known, also those that chains which begin at one point may never visit."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.landscape.curvature import below_mode, hessian, is_degenerate
from mhrun.engine.landscape.laplace import NormalMode, normal_mode, shares
from mhrun.engine.landscape.modes import Mode, find_modes
from mhrun.engine.landscape.surface import Surface
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
# A mode matters if it has this share of the posterior, or adds this share to a variance: a thousandth of the draws at
# thirty standard deviations nearly doubles one.
SHARE, _VARIANCE = 0.01, 0.1
_MOST = 10  # modes that are kept, those with the largest shares


class KnownMode(NamedTuple):
    """A mode with its share of the posterior."""

    theta: tuple[float, ...]  # (D,)
    share: float  # of its mass in that of all known modes, by Laplace's approximation
    begins: bool  # whether a chain begins there


def known_modes(
    surface: Surface,
    modes: Mode,
    curvature: Tensor,
    key: int,
    further: Tensor | None = None,
    budget: int = FEW_GRADIENTS,
) -> list[KnownMode]:
    """Return the modes that matter of those where chains begin and those that ascents from far away end at.

    Chains that all begin near one mode have an R-hat of 1 whether or not they ever visit another. So ascents are made
    from points 5, 10, 20 and 40 standard deviations from the highest mode, in random directions and their opposites:
    eight of them, and eight more for every five parameters above five. A mode at a fixed place is the more standard
    deviations away the more data there are, so that there are ascents from further first points of chains, and from the
    mode with other signs: of each coordinate, and of all.

    Two modes are different if they are 4 standard deviations apart, by the curvature at either. One matters if it has
    at least 1 % of the mass of all known ones, or so much that it adds 10 % to a variance. With many data or
    parameters, and for networks, nothing is tried: ascents would take longer than the pilot. A mode that no ascent ends
    at is not found.

    Args:
        surface: the log posterior; what is evaluated is added to its count.
        modes: at which the chains begin; the highest is proper.
        curvature: minus the Hessian (D, D) at the highest one.
        key: of the random directions.
        further: points (K, D) where further chains would begin, if there are any.
        budget: gradients of single data, after which no other ascent begins from far away, and as many from elsewhere.

    Returns:
        Those with the largest shares first, at most ten. Nothing if a single mode is known.
    """
    if surface.target.n > _MAX_DATA or len(curvature) > _MAX_PARAMETERS or is_network(surface.target.model):
        return []
    ends: list[Mode] = []
    # A model need not be defined so far out, and a class of the user's may raise any exception there.
    with suppress(Exception):
        highest = normal_mode(surface, modes.theta[modes.best], curvature)
        ends += _from_far_away(surface, modes, highest, key, budget)
        before, points = surface.n_grad, _reflected(highest)
        if further is not None and len(further.unique(dim=0)) > 1:
            points = torch.cat([points, further.to(points)])
        for few in points.split(_TOGETHER):
            with suppress(Exception):
                if len(few) and surface.n_grad - before <= budget:
                    ends.append(find_modes(surface, few.to(modes.theta)))
        return _that_matter(surface, modes, highest, ends)
    return []


def _that_matter(surface: Surface, modes: Mode, highest: NormalMode, ends: list[Mode]) -> list[KnownMode]:
    """Return the different modes that matter.

    Args:
        surface: the log posterior.
        modes: at which the chains begin.
        highest: of them.
        ends: of further ascents.
    """
    begun = [highest]  # different points where chains begin
    known = [highest]  # proper modes
    for theta in modes.theta.unique(dim=0):
        if _is_apart(begun, theta):
            mode = _proper_mode(surface, theta)
            begun.append(mode or highest._replace(theta=theta.double().cpu()))
            known += [] if mode is None else [mode]
    others = list[NormalMode]()
    for theta in (theta for few in ends for theta in few.theta):
        if bool(theta.isfinite().all()) and _is_apart(begun + others, theta):
            mode = _proper_mode(surface, theta)
            if mode is not None and all(each.is_apart(mode, _APART) for each in begun + others):
                others.append(mode)
    known += others
    if len(known) == 1:
        return []
    of_all = shares(known)
    added = of_all * highest.squared_distances(torch.stack([each.theta for each in known]))
    found = [
        KnownMode(tuple(mode.theta.tolist()), float(of_all[k]), k < len(known) - len(others))
        for k, mode in enumerate(known)
        if of_all[k] >= SHARE or added[k] >= _VARIANCE
    ]
    return sorted(found, key=lambda mode: -mode.share)[:_MOST]


def _is_apart(known: list[NormalMode], theta: Tensor) -> bool:
    """Return whether a point (D,) is far from each of these modes, by the curvature there."""
    point = theta.double().cpu()[None]
    return all(float(each.squared_distances(point)) >= _APART**2 for each in known)


def _proper_mode(surface: Surface, theta: Tensor) -> NormalMode | None:
    """Return the mode at an end of an ascent (D,); None if it is none, or has no curvature in some direction."""
    curvature = hessian(surface, theta)
    if not bool(curvature.isfinite().all()) or is_degenerate(curvature):
        return None
    _, gradient = surface.value_and_grad(theta[None])
    is_mode = below_mode(gradient[0].cpu(), curvature) < _NATS
    return normal_mode(surface, theta, curvature) if is_mode else None


def _from_far_away(surface: Surface, modes: Mode, highest: NormalMode, key: int, budget: int) -> list[Mode]:
    """Return where ascents end that begin away from the highest mode, until a budget of gradients is spent.

    A random direction has less of any one the more parameters there are, so that more of them are tried.
    """
    dim, before = len(highest.theta), surface.n_grad
    found: list[Mode] = []
    with suppress(Exception):
        root = torch.linalg.cholesky(highest.precision)
        for turn in range(math.ceil(dim / _PARAMETERS_A_TURN)):
            z = Draws(Streams(derive_key(key, "other modes"), len(_DISTANCES)), turn).normal(
                Purpose.INIT, dim
            )
            directions = torch.linalg.solve_triangular(root.T, z.cpu().double().T, upper=True).T
            away = torch.tensor(_DISTANCES)[:, None] * directions / z.cpu().norm(dim=1, keepdim=True)
            points = torch.cat([highest.theta + away, highest.theta - away]).to(modes.theta)
            points = points[surface.value_and_grad(points)[0].isfinite().to(points.device)]
            found += [find_modes(surface, few) for few in points.split(_TOGETHER) if len(few)]
            if surface.n_grad - before > budget:
                break
    return found


def _reflected(highest: NormalMode) -> Tensor:
    """Return the highest mode with other signs (K, D), where that is not near it."""
    best = highest.theta
    signs = 1.0 - 2.0 * torch.cat([torch.ones(1, len(best)), torch.eye(len(best))]).to(best)
    points = (signs * best).unique(dim=0)
    return points[highest.squared_distances(points) > _APART**2]
