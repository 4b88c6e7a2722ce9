"""Finds the modes that chains begin at, and what such chains may miss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mhrun.engine.landscape.all_data import without_absent
from mhrun.engine.landscape.heavy_tails import HeavyTail, heavy_tail
from mhrun.engine.landscape.impropriety import direction_in_words, flat_direction
from mhrun.engine.landscape.known_modes import FEW_GRADIENTS, KnownMode, known_modes
from mhrun.engine.landscape.laplace import normal_mode
from mhrun.engine.landscape.low_modes import Moved, without_low_modes
from mhrun.engine.landscape.modes import CurvedModes, find_curved_modes, find_modes
from mhrun.engine.landscape.necks import nats_below_starts
from mhrun.engine.landscape.rays import Beyond, along_rays
from mhrun.engine.landscape.surface import Surface
from mhrun.engine.limits import most_scaled
from mhrun.models.parameters import coordinate_names, numbers_of
from mhrun.store.pilot_facts import PilotFacts
from mhrun.types import Model


class Search(NamedTuple):
    """How far another mode is looked for."""

    further: Callable[[], Tensor | None] = lambda: None  # points (K, D) where further chains would begin
    budget: int = (
        FEW_GRADIENTS  # gradients of single data, see `mhrun.engine.landscape.known_modes.known_modes`
    )


class Landscape(NamedTuple):
    """The modes of a log posterior, and what chains that begin there may miss."""

    surface: Surface  # of the data that the modes are of
    curved: CurvedModes  # where chains begin: a mode for each point that ascents began from
    moved: Moved | None = None  # what became of ascents to modes that have hardly a share of the posterior
    neck: float | None = None  # nats by which the highest mode has less mass than the starting points
    flat: Tensor | None = None  # (D,), a direction in which the log posterior does not fall off
    is_density: bool = False  # whether it levels off at 0, as a density does whose logarithm was not taken
    beyond: Beyond | None = None  # mass far from the highest mode
    heavy: HeavyTail | None = None  # a direction in which it falls off so slowly that it has no variance
    modes: tuple[KnownMode, ...] = ()  # that are known, if there are several

    @property
    def is_found(self) -> bool:
        """Whether ascents ended at points."""
        return bool(self.curved.modes.theta.isfinite().all())

    @property
    def highest(self) -> Tensor:
        """The highest mode (D,)."""
        return self.curved.modes.theta[self.curved.modes.best]

    def facts(self, model: Model) -> PilotFacts:
        """Return what was found, with the names of the model's parameters."""
        facts: PilotFacts = {}
        if self.moved is not None:
            ascents, of, nats = self.moved
            facts["moved"] = {"ascents": ascents, "of": of, "nats": nats}
        if self.neck is not None:
            facts["neck"] = self.neck
        if self.flat is not None:
            facts["flat_along"] = direction_in_words(self.flat, coordinate_names(model))
        if self.is_density:
            facts["is_density"] = True
        if self.beyond is not None:
            mode: list[float] = self.highest.tolist()
            radius, share = self.beyond
            facts["beyond"] = {"at": numbers_of(model, mode), "theta": mode, "radius": radius, "share": share}
        if self.modes:
            facts["modes"] = [
                {"at": numbers_of(model, theta), "theta": theta, "share": share, "begins": begins}
                for theta, share, begins in self.modes
            ]
        if self.heavy is not None:
            direction = direction_in_words(self.heavy.direction, coordinate_names(model))
            facts["heavy"] = {"direction": direction, "power": self.heavy.power}
        return facts


def explored(surface: Surface, theta: Tensor, key: int, search: Search) -> Landscape:
    """Return the modes that ascents end at, and what chains that begin there may miss.

    Where ascents fail, or end at no proper mode, less is looked for. With more parameters than a scale is found for
    (`mhrun.engine.limits.most_scaled`) there are the ends of ascents alone.

    Args:
        surface: the log posterior; what is evaluated is added to its count.
        theta: first points of the chains (C, D), or of each ladder.
        key: of the random numbers.
        search: for another mode.
    """
    if surface.target.dim > most_scaled(surface.target.model):
        return Landscape(surface, CurvedModes(find_modes(surface, theta), None, False))
    surface, curved = without_absent(surface, find_curved_modes(surface, theta))
    found = Landscape(surface, curved)
    if not found.is_found:
        return found
    modes, curvature, proper = curved
    if curvature is None or not proper:  # the highest point of a ridge without an end is no mode
        flat = flat_direction(surface, found.highest, curvature, proper=False)
        return found._replace(flat=flat)
    modes, moved = without_low_modes(surface, modes, curvature)
    found = found._replace(curved=curved._replace(modes=modes), moved=moved)
    if (neck := nats_below_starts(surface, modes, curvature, theta)) is not None:
        return found._replace(neck=neck)
    flat = flat_direction(surface, found.highest, curvature, proper=True)
    rays = along_rays(surface, found.highest, modes.height, curvature, key)
    if flat is not None or rays.plateau is not None:
        flat = rays.plateau if flat is None else flat
        return found._replace(flat=flat, is_density=rays.is_density)
    heavy = heavy_tail(surface, found.highest, curvature)
    known = known_modes(surface, modes, curvature, key, search.further(), search.budget)
    beyond = None if _is_explained(rays.beyond, known, found, curvature) else rays.beyond
    return found._replace(beyond=beyond, heavy=heavy, modes=tuple(known))


def _is_explained(
    beyond: Beyond | None, known: Sequence[KnownMode], found: Landscape, curvature: Tensor
) -> bool:
    """Return whether mass far from the highest mode is that of other known modes, for the most part."""
    if beyond is None or not known:
        return False
    highest = normal_mode(found.surface, found.highest, curvature)
    places = torch.tensor([mode.theta for mode in known], dtype=torch.float64)
    far = highest.squared_distances(places) > beyond.radius**2
    return sum(mode.share for mode, is_far in zip(known, far, strict=True) if is_far) >= beyond.share / 2
