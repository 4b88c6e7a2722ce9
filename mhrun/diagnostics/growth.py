"""Errors of mean and standard deviation relative to a reference, as functions of the number of draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mhrun.array_types import FloatArray

_MIN_DRAWS = 4  # draws of a chain from which errors are computed
_POINTS = 16  # lengths, evenly on a logarithmic scale


class Growth(NamedTuple):
    """Errors of the estimates from the first draws of all chains, (K,) each, root mean squares over the coordinates."""

    share: FloatArray  # of the draws that are used
    mean: FloatArray  # error of the mean, in standard deviations of the reference
    spread: FloatArray  # error of the standard deviation, in the same units


def growth(draws: FloatArray, reference: FloatArray) -> Growth:
    """Return the errors of the estimates from the first 4, ..., S draws of each chain.

    With k draws of each chain, the error of a coordinate's mean is (mean_k - mean_ref) / sd_ref, and that of its
    standard deviation sd_k / sd_ref - 1. Both fall with one over the square root of k until the method's own bias, or
    the error of the reference, remains. Coordinates in which the reference never moves are left out.

    Args:
        draws: (C, S, D) with S at least 4.
        reference: (C', S', D).
    """
    sd = reference.std(axis=(0, 1), ddof=1)
    moves = sd > 0
    draws, centre, sd = draws[..., moves], reference.mean(axis=(0, 1))[moves], sd[moves]
    length = draws.shape[1]
    sizes = np.unique(np.geomspace(min(_MIN_DRAWS, length), length, _POINTS).round().astype(int))
    errors = []
    for size in sizes:
        first = draws[:, :size]
        off = (first.mean(axis=(0, 1)) - centre) / sd
        wide = first.std(axis=(0, 1), ddof=1) / sd - 1
        errors.append([_root_mean_square(off), _root_mean_square(wide)])
    mean, spread = np.array(errors).T
    return Growth(sizes / length, mean, spread)


def _root_mean_square(values: FloatArray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else float("nan")
