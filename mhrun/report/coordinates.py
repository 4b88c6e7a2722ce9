"""Posterior summaries of single coordinates: mean, sd, quantiles, MCSE, effective sample sizes, R-hat."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mhrun.diagnostics.chains import COORDINATES, ess, mcse, rhat, some_coordinates
from mhrun.report.efficiency import valid_draws
from mhrun.report.run import Run

Draws = npt.NDArray[np.float64]

SHOWN = 12  # coordinates of a method that are summarised, those with the largest R-hat
QUANTILES = (0.05, 0.5, 0.95)
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
    draws: Draws  # (C, S, coordinates), in the same order
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


def coordinates_of(run: Run) -> dict[str, Summarised]:
    """Return the summaries of each method of a run; of many coordinates the `SHOWN` with the largest R-hat."""
    return {method: _summarised(run, method) for method in run.methods}


def _summarised(run: Run, method: str) -> Summarised:
    names = run.target_of(method).model.names
    draws = valid_draws(run, method)
    if isinstance(draws, str):
        return Summarised([], len(names), np.empty((0, 0, 0)), draws)
    columns = some_coordinates(len(names), min(COORDINATES, draws.shape[-1]))
    if len(columns) > SHOWN:
        few = draws[:, :: -(-draws.shape[1] // _ROUGH)]
        rough = np.array([rhat(few[..., k]) for k in range(len(columns))])
        kept = np.sort(np.argsort(-np.nan_to_num(rough, nan=np.inf), kind="stable")[:SHOWN])
        columns, draws = columns[kept], draws[..., kept]
    found = [_coordinate(int(d), str(names[int(d)]), draws[..., k]) for k, d in enumerate(columns)]
    return Summarised(found, len(names), draws, "")


def _coordinate(index: int, name: str, draws: Draws) -> Coordinate:
    low, middle, high = (float(q) for q in np.quantile(draws, QUANTILES))
    return Coordinate(
        index,
        name,
        float(draws.mean()),
        float(draws.std(ddof=1)) if draws.size > 1 else float("nan"),
        (low, middle, high),
        mcse(draws),
        ess(draws),
        ess(draws, "tail"),
        rhat(draws),
    )
