"""Section 5.1 and appendix A.1 of Zhang et al. (2020): 25 Gaussians on a grid, Figures 2 and 5, Table 4."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from mhrun.errors import UserError
from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.vocabulary import Estimate, Run, by_rows

from ..shared.coverage import Counts, Tally, covered, distance_by_chance, pooled, ratio, tally, union, visited
from ..shared.plane import centres, collected, variance

RADIUS, ENOUGH = 0.25, 100  # a mode is covered by more than ENOUGH draws within RADIUS of its centre
RULES = ((0.25, 100), (0.25, 50), (0.25, 25), (0.5, 100), (0.5, 50))  # (radius, draws): the first is theirs
WIDE = 0.5  # a radius that the stored text leaves open too
REACH = 1.0  # half of the distance of two neighbours
READINGS = ("text", "code")


class Row(NamedTuple):
    """A row of Table 4."""

    label: str
    method: str  # of a reading
    metric: str
    printed: Estimate
    exchanged: Estimate


ROWS = (
    Row("SGLD", "sgld", "modes_one", Estimate(1.8, 0.13), Estimate(1.8, 0.13)),
    Row("cSGLD", "csgld", "modes_one", Estimate(6.7, 0.52), Estimate(18.0, 0.47)),
    Row("parallel SGLD", "sgld", "modes_four", Estimate(18.0, 0.47), Estimate(6.7, 0.52)),
    Row("parallel cSGLD", "csgld", "modes_four", Estimate(24.4, 0.22), Estimate(24.4, 0.22)),
)


def tallies(run: Run) -> dict[str, Tally]:
    """Return the counts of every method."""
    radii = sorted({radius for radius, _ in RULES})
    return {method: tally(collected(run, method), centres(run), radii, REACH) for method in run.methods}


def together(run: Run) -> int:
    """Return how many chains make a parallel run.

    Raises:
        UserError: there are not as many.
    """
    count = int(run.config["together"])
    if run.config["chains"] < count:
        raise UserError(f"a parallel run is of {count} chains; set chains={count} or a multiple of it.")
    return count


def of_runs(counts: Counts, chains: int) -> dict[str, Counts]:
    """Return counts (C, K) of single chains, the first of each run, and of parallel runs: (R, K) each."""
    four = pooled(counts, chains)
    return {"one": counts[::chains][: len(four)], "four": four}


def metrics(run: Run) -> MetricTable:
    """Return the metrics of the claims and tables."""
    table = MetricTable()
    for method, counts in run.cached(tallies).items():
        table.add(method, _metrics(run, counts))
    for reading in READINGS:
        if {f"{reading}_sgld", f"{reading}_csgld"} <= set(run.methods):
            table.add(reading, _orders(run, reading))
    modes, cycles = len(centres(run)), int(run.config["cycles"])
    for name, visits in (("one", cycles), ("four", cycles * together(run))):
        table.add("theory", {f"modes_{name}": visited(modes, visits)})
    for name, visits in (("one", cycles), ("four", cycles * together(run))):
        table.add("theory", {f"weights_{name}": distance_by_chance(modes, visits)})
    table.add("theory", {"share": 1 - math.exp(-(RADIUS**2) / (2 * variance(run)))})
    return table


def _metrics(run: Run, counts: Tally) -> Metrics:
    chains, modes = together(run), len(centres(run))
    numbers: Metrics = {
        "draws": float(counts.draws.mean()),
        "share": estimate(counts.share(RADIUS)),
        "between": estimate(1 - counts.share(0.5)),
        "variance": estimate(counts.squares[np.isfinite(counts.squares)]),
        "modes_all": estimate(covered(counts.within[RADIUS], ENOUGH)),
    }
    for name, near in of_runs(counts.within[RADIUS], chains).items():
        modes_covered = covered(near, ENOUGH)
        numbers |= {
            f"modes_{name}": estimate(modes_covered),
            f"modes_{name}_least": float(modes_covered.min()),
            f"modes_{name}_most": float(modes_covered.max()),
        }
    for name, near in of_runs(counts.within[WIDE], chains).items():
        numbers[f"wide_{name}"] = estimate(covered(near, ENOUGH))
    for name, near in of_runs(counts.nearest, chains).items():
        shares = ratio(near, near.sum(axis=1, keepdims=True))
        numbers[f"weights_{name}"] = estimate(0.5 * np.abs(shares - 1 / modes).sum(axis=1))
    return numbers


def _orders(run: Run, reading: str) -> Metrics:
    """Return the share of runs in which the four rows are in the order of Table 4, as printed and exchanged."""
    near = {
        name: of_runs(run.cached(tallies)[f"{reading}_{name}"].within[RADIUS], together(run))
        for name in ("sgld", "csgld")
    }
    rows = [covered(near[row.method][row.metric.removeprefix("modes_")], ENOUGH) for row in ROWS]
    return {
        f"order_{name}": float((np.diff([rows[i] for i in order], axis=0) > 0).all(axis=0).mean())
        for name, order in (("printed", (0, 1, 2, 3)), ("exchanged", (0, 2, 1, 3)))
    }


def table4(run: Run) -> pd.DataFrame:
    """Modes covered, of 25, mean over ten runs with its standard error (Table 4)."""
    numbers, rows = run.cached(metrics), {}
    modes, chains = len(centres(run)), together(run)
    chance = {
        "cSGLD": numbers["theory.modes_one"],
        "parallel SGLD": union(modes, ROWS[0].printed.value, chains),
        "parallel cSGLD": numbers["theory.modes_four"],
    }
    for row in ROWS:
        rows[row.label] = {
            "paper, as printed": row.printed,
            "paper, rows exchanged": row.exchanged,
            "by chance": chance.get(row.label),
        }
        for reading in READINGS:
            rows[row.label][f"here, {reading}"] = numbers.get(f"{reading}_{row.method}.{row.metric}")
            if row.metric == "modes_one":
                rows[row.label][f"all chains, {reading}"] = numbers.get(f"{reading}_{row.method}.modes_all")
    return by_rows(rows)


def independent(run: Run) -> dict[str, Metrics]:
    """Return what independent draws from the target have, in the place of a method, and visits to modes at random."""
    numbers, spread = run.cached(metrics).of("theory"), variance(run)
    return {"target, or by chance": numbers | {"between": math.exp(-0.25 / (2 * spread)), "variance": spread}}


def sensitivity(run: Run) -> pd.DataFrame:
    """Modes covered by other rules: more than n draws within r of a centre; the first column is Table 4's."""
    rows = {}
    for reading in READINGS:
        for row in ROWS:
            if (counts := run.cached(tallies).get(f"{reading}_{row.method}")) is None:
                continue
            kind = row.metric.removeprefix("modes_")
            rows[f"{row.label}, {reading}"] = {
                f"r = {radius:g}, n = {enough}": estimate(
                    covered(of_runs(counts.within[radius], together(run))[kind], enough)
                )
                for radius, enough in RULES
            }
    return by_rows(rows)
