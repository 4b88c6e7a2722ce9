"""Warnings of equi-energy ladders: rungs that stay where their density is flat, and an anchor that is not the mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mhrun.engine.diagnosis.flat_regions import FLAT_REGIONS, FlatRegions
from mhrun.engine.method import Method
from mhrun.models.parameters import parameters_of
from mhrun.numbers import rounded

_BELOW = 0.05  # in units of T_0; the density is at most so much too low there
_SHOWN = 6  # parameters of a point in a message


def flat_region_warnings(method: Method, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line if rungs stay where their density is flat, and one if the coldest rung has such a region.

    A Langevin move from outside of that region is one along the gradient. With a step size that is long for it, its
    density at a point inside is tiny, so that hardly any move out of the region is accepted; those within it are random
    walks, which the tuning of burn-in makes longer and longer.
    """
    if (found := summary.get(FLAT_REGIONS)) is None:
        return
    flat = FlatRegions(**found)
    if inside := [k for k, share in enumerate(flat.above) if k > 0 and share == 0]:
        rungs = f"rung{'s' * (len(inside) > 1)} {', '.join(map(str, inside))}"
        yield (
            f"{method.name}: none of {flat.draws:,} draws of {rungs} has an energy above H_k, below which the density "
            "is flat: the temperature has no effect there. If moves out of the flat region are refused, the step size "
            "is too long for the slopes around it: take proposal=random_walk, or a fixed, shorter step size. If there "
            "is hardly any probability outside, lower kernel.spacing."
        )
    if flat.below > _BELOW:
        point = ""
        if len(flat.lowest) <= _SHOWN:
            parameters = parameters_of(method.target.model)
            where = "" if parameters is None or parameters.is_plain else " (in unconstrained coordinates)"
            point = f", for instance [{', '.join(f'{value:.6g}' for value in flat.lowest)}]{where}"
        yield (
            f"{method.name}: draws of the coldest rung have energies up to {rounded(flat.below)} T below H_0, that of "
            "the anchor, where its density is flat: they are not of the posterior. Give kernel.anchor a point of lower "
            f"energy{point}."
        )
