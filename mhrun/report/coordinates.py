"""Posterior summaries of single coordinates: mean, sd, quantiles, MCSE, effective sample sizes, R-hat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mhrun.diagnostics.chains import ChainDraws, Diagnosis, diagnoses, rhat
from mhrun.report.efficiency import columns_of, valid_draws
from mhrun.report.run import Run

SHOWN = 12  # coordinates of a method that are summarised: those of small parameters, and those with the largest R-hat
_MOST_SMALL = 10  # numbers of all small parameters
_ROUGH = 400  # draws of a chain from which coordinates are ranked by R-hat


class Coordinate(NamedTuple):
    """What the draws say of one coordinate."""

    at: int  # its place in theta
    name: str
    mean: float
    sd: float
    quantiles: tuple[float, float, float]  # 5 %, 50 %, 95 %
    mcse: float  # Monte Carlo standard error of the mean
    ess: float
    ess_tail: float
    rhat: float


class Summarised(NamedTuple):
    """The coordinates of one method that are shown."""

    coordinates: list[Coordinate]  # in the order of the parameters
    of: int  # D
    columns: npt.NDArray[np.int64]  # their places among the valid draws
    why: str  # there are none; else empty

    @property
    def worst(self) -> int:
        """The place in `coordinates` of the one with the largest R-hat; of one that never moved, if there is one."""
        values = [c.rhat if np.isfinite(c.rhat) else np.inf for c in self.coordinates]
        return (
            int(np.argmax(values))
            if len({*values}) > 1
            else int(np.argmin([c.ess for c in self.coordinates]))
        )


def draws_of(run: Run, method: str, about: Summarised) -> ChainDraws:
    """Return the draws (C, S, coordinates) of the coordinates that are shown; the method must have some."""
    draws = valid_draws(run, method)
    assert not isinstance(draws, str), draws
    return draws if len(about.columns) == draws.shape[-1] else draws[..., about.columns]


def coordinates_of(run: Run) -> dict[str, Summarised]:
    """Return the summaries of each method of a run; of many coordinates `SHOWN`, the same for all methods of a model.

    These are the coordinates of small parameters beside large ones (an intercept and a spread beside the effects of
    groups), and then those with the largest R-hat, those of each method in turn.
    """
    ranked: dict[tuple[str, ...], list[ChainDraws]] = {}
    for method in run.methods:
        rough = _rough(run, method)
        if len(rough) > SHOWN:
            ranked.setdefault(tuple(run.target_of(method).model.names), []).append(rough)
    chosen = {}
    for names, rough_of_methods in ranked.items():
        scores = [-np.nan_to_num(rough, nan=np.inf) for rough in rough_of_methods]
        places = np.array([np.argsort(np.argsort(score, kind="stable")) for score in scores])
        worst = np.lexsort((np.min(scores, axis=0), places.min(axis=0)))
        small = small_parameters(names) if len(worst) == len(names) else []
        others = [place for place in worst if place not in small]
        chosen[names] = np.sort([*small, *others[: SHOWN - len(small)]])
    return {method: _summarised(run, method, chosen) for method in run.methods}


def small_parameters(names: Sequence[str]) -> list[int]:
    """Return the places of the smallest parameters, at most 10 numbers in all, beside a larger one.

    Of an intercept, six weights, the effects of thirty groups and their spread, these are all but the effects.
    """
    owners = [name.partition("[")[0] for name in names]
    sizes = Counter(owners)
    small: list[int] = []
    for size in sorted(set(sizes.values()))[:-1]:
        places = [place for place, owner in enumerate(owners) if sizes[owner] == size]
        if len(small) + len(places) > _MOST_SMALL:
            break
        small += places
    return sorted(small)


def _rough(run: Run, method: str) -> ChainDraws:
    """Return R-hat of the coordinates that are read, from a part of the draws; empty if all of them are shown."""
    if len(run.target_of(method).model.names) <= SHOWN:
        return np.empty(0)
    draws = valid_draws(run, method)
    if isinstance(draws, str):
        return np.empty(0)
    thinned = draws[:, :: -(-draws.shape[1] // _ROUGH)]
    return np.array([rhat(thinned[..., k]) for k in range(thinned.shape[-1])])


def _summarised(run: Run, method: str, chosen: Mapping[tuple[str, ...], npt.NDArray[np.int64]]) -> Summarised:
    names = run.target_of(method).model.names
    draws = valid_draws(run, method)
    if isinstance(draws, str):
        return Summarised([], len(names), np.empty(0, np.int64), draws)
    columns = columns_of(run, method, len(names), draws.shape[-1])
    indices = np.arange(len(columns))
    if len(columns) > SHOWN:
        indices = chosen[tuple(names)]
        columns, draws = columns[indices], draws[..., indices]
    coordinates = [
        _coordinate(int(d), str(names[int(d)]), draws[..., k], diagnosis)
        for k, (d, diagnosis) in enumerate(zip(columns, diagnoses(draws), strict=True))
    ]
    return Summarised(coordinates, len(names), indices, "")


def _coordinate(index: int, name: str, draws: ChainDraws, diagnosis: Diagnosis) -> Coordinate:
    mean, sd = float(draws.mean()), float(draws.std(ddof=1)) if draws.size > 1 else float("nan")
    return Coordinate(
        index,
        name,
        mean,
        sd,
        diagnosis.quantiles,
        diagnosis.mcse,
        diagnosis.ess,
        diagnosis.ess_tail,
        diagnosis.rhat,
    )
