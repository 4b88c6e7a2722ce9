"""Section 5.1 and appendix A.1 of Zhang et al. (2020): 25 Gaussians on a grid, Figures 2 and 5, Table 4."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from mhrun.diagnostics.grid import Estimate
from mhrun.errors import UserError
from mhrun.report.run import Run
from mhrun.report.tables import shown

from ..shared.coverage import Counts, Tally, covered, distance_by_chance, pooled, tally, union, visited
from ..shared.measures import Metrics, estimate, value

Array = npt.NDArray[np.floating]

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


def centres(run: Run) -> Array:
    """Return the centres of the mixture (K, 2)."""
    return np.array(run.config["model"]["centres"], float)


def variance(run: Run) -> float:
    """Return the variance of its components."""
    return float(run.config["model"]["variances"])


def collected(run: Run, method: str) -> list[Array]:
    """Return the draws of each chain (S, 2), those that are of the target's law."""
    return [
        draws[valid] for draws, valid in zip(run.draws(method, marked=True), run.valid(method), strict=True)
    ]


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


def metrics(run: Run) -> Metrics:
    """Everything of this experiment that a claim or a table speaks of."""
    found: Metrics = {}
    for method, counts in run.once(tallies).items():
        found |= {f"{method}.{name}": number for name, number in _metrics(run, counts).items()}
    for reading in READINGS:
        if {f"{reading}_sgld", f"{reading}_csgld"} <= set(run.methods):
            found |= _orders(run, reading)
    modes, cycles = len(centres(run)), int(run.config["cycles"])
    return found | {
        "theory.modes_one": visited(modes, cycles),
        "theory.modes_four": visited(modes, cycles * together(run)),
        "theory.weights_one": distance_by_chance(modes, cycles),
        "theory.weights_four": distance_by_chance(modes, cycles * together(run)),
        "theory.share": 1 - math.exp(-(RADIUS**2) / (2 * variance(run))),
    }


def _metrics(run: Run, counts: Tally) -> Metrics:
    chains, modes = together(run), len(centres(run))
    found: Metrics = {
        "draws": float(counts.draws.mean()),
        "share": estimate(counts.share(RADIUS)),
        "between": estimate(1 - counts.share(0.5)),
        "variance": estimate(counts.squares[np.isfinite(counts.squares)]),
        "modes_all": estimate(covered(counts.within[RADIUS], ENOUGH)),
    }
    for name, near in of_runs(counts.within[RADIUS], chains).items():
        seen = covered(near, ENOUGH)
        found |= {
            f"modes_{name}": estimate(seen),
            f"modes_{name}_least": float(seen.min()),
            f"modes_{name}_most": float(seen.max()),
        }
    for name, near in of_runs(counts.within[WIDE], chains).items():
        found[f"wide_{name}"] = estimate(covered(near, ENOUGH))
    for name, near in of_runs(counts.nearest, chains).items():
        shares = near / near.sum(axis=1, keepdims=True)
        found[f"weights_{name}"] = estimate(0.5 * np.abs(shares - 1 / modes).sum(axis=1))
    return found


def _orders(run: Run, reading: str) -> Metrics:
    """Return the share of runs in which the four rows are in the order of Table 4, as printed and exchanged."""
    near = {
        name: of_runs(run.once(tallies)[f"{reading}_{name}"].within[RADIUS], together(run))
        for name in ("sgld", "csgld")
    }
    rows = [covered(near[row.method][row.metric.removeprefix("modes_")], ENOUGH) for row in ROWS]
    return {
        f"{reading}.order_{name}": float((np.diff([rows[i] for i in order], axis=0) > 0).all(axis=0).mean())
        for name, order in (("printed", (0, 1, 2, 3)), ("exchanged", (0, 2, 1, 3)))
    }


def table4(run: Run) -> pd.DataFrame:
    """Modes covered, of 25, mean over ten runs with its standard error (Table 4).

    A mode is covered by more than 100 draws within 0.25 of its centre. Single chains are the first of each run of four;
    "all chains" is the mean over all of them. "By chance": modes visited if each of the 30 cycles, or 120, ends in any
    mode alike; for parallel SGLD, the union of four random sets of as many modes as the paper's single chains cover.
    """
    found, rows = run.once(metrics), {}
    modes, chains = len(centres(run)), together(run)
    chance = {
        "cSGLD": found["theory.modes_one"],
        "parallel SGLD": union(modes, ROWS[0].printed.value, chains),
        "parallel cSGLD": found["theory.modes_four"],
    }
    for row in ROWS:
        rows[row.label] = {
            "paper, as printed": row.printed,
            "paper, rows exchanged": row.exchanged,
            "by chance": chance.get(row.label),
        }
        for reading in READINGS:
            rows[row.label][f"here, {reading}"] = found.get(f"{reading}_{row.method}.{row.metric}")
            if row.metric == "modes_one":
                rows[row.label][f"all chains, {reading}"] = found.get(f"{reading}_{row.method}.modes_all")
    return pd.DataFrame.from_dict(rows, orient="index")


_QUALITY = {
    "within 0.25": "share",
    "beyond 0.5": "between",
    "variance in a mode": "variance",
    "TV of weights, one chain": "weights_one",
    "TV of weights, four": "weights_four",
}


def quality(run: Run) -> pd.DataFrame:
    """What coverage does not tell: how well draws fill the modes, and whether each has its weight.

    Share of draws within 0.25 of a centre, and beyond 0.5 of all; variance of a coordinate about the nearest centre, of
    draws within 1 of it; total variation distance of the modes' weights (draws by nearest centre) from 1/25 each. First
    row: what independent draws from the target have, and weights of 30 and 120 visits to modes at random.
    """
    found = run.once(metrics)
    exact: dict[str, Estimate | float] = {
        "within 0.25": found["theory.share"],
        "beyond 0.5": math.exp(-0.25 / (2 * variance(run))),
        "variance in a mode": variance(run),
        "TV of weights, one chain": found["theory.weights_one"],
        "TV of weights, four": found["theory.weights_four"],
    }
    return pd.concat(
        [
            pd.DataFrame.from_dict({"target, or by chance": exact}, orient="index"),
            run.by_method(found, _QUALITY),
        ]
    )


def sensitivity(run: Run) -> pd.DataFrame:
    """Modes covered by other rules: more than n draws within r of a centre; the first column is Table 4's.

    A mode with more than 100 draws of four chains has more than 25 of one of them: so four
    times the single chains at n = 25 bound what four chains can cover at n = 100.
    """
    rows = {}
    for reading in READINGS:
        for row in ROWS:
            if (counts := run.once(tallies).get(f"{reading}_{row.method}")) is None:
                continue
            which = row.metric.removeprefix("modes_")
            rows[f"{row.label}, {reading}"] = {
                f"r = {radius:g}, n = {enough}": estimate(
                    covered(of_runs(counts.within[radius], together(run))[which], enough)
                )
                for radius, enough in RULES
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def beyond(run: Run) -> pd.DataFrame:
    """Beyond the paper: other samplers on the same mixture, with step sizes of ours (see the configuration).

    Modes covered by one chain and by four, as in Table 4, over draws that are collected: their mean number for a chain.
    """
    found = run.once(metrics)
    columns = {
        "one chain": "modes_one",
        "four chains": "modes_four",
        "draws": "draws",
        "within 0.25": "share",
        "variance in a mode": "variance",
        "TV of weights, four": "weights_four",
    }
    return run.by_method(found, columns)


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    return [*_of_table4(run), *_of_readings(run), *_of_draws(run), *_of_others(run)]


def _of_table4(run: Run) -> list[str]:
    found, modes, chains = run.once(metrics), len(centres(run)), together(run)
    single, cyclical, four, four_cyclical = (row.printed.value for row in ROWS)
    by_single, by_cyclical, by_four = (union(modes, each, chains) for each in (single, cyclical, four))
    lines = [
        f"The rows cSGLD and Parallel SGLD of Table 4 are exchanged. By the table alone: {chains} chains of "
        f"{single:g} modes cover about {chains * single:.1f} at most and {by_single:.1f} on average, where {four:g} is "
        f"printed, and {chains} chains of {cyclical:g} cover {by_cyclical:.1f} on average, where {four_cyclical:g} is "
        f"printed. Exchanged, the same sums give {by_single:.1f} for {cyclical:g} and {by_four:.1f} for "
        f"{four_cyclical:g}.",
    ]
    whole = [r for r in READINGS if {f"{r}_sgld", f"{r}_csgld"} <= set(run.methods)]
    lines += [
        f"Settings of the {r}: one chain of cSGLD covers {shown(found[f'{r}_csgld.modes_one'])} modes and {chains} "
        f"of SGLD cover {shown(found[f'{r}_sgld.modes_four'])}; the four numbers are in the order of the exchanged "
        f"table in {value(found[f'{r}.order_exchanged']):.0%} of the runs, in that of the printed one in "
        f"{value(found[f'{r}.order_printed']):.0%}."
        for r in whole
    ]
    if {"text_sgld", "held_sgld"} <= set(run.methods):
        lines.append(
            "SGLD covers fewer modes here than in the exchanged table, by its schedule: chains go from mode to mode "
            f"only while the step is near its first. With the text's none does, and four cover {chains} at most: "
            f"that exchanged claim fails. With the code's first step held for {run.config['held']:,} steps, so that "
            f"a single chain covers about the paper's number ({shown(found['held_sgld.modes_all'])} over all "
            f"chains), four cover {shown(found['held_sgld.modes_four'])}."
        )
    return lines


def _of_readings(run: Run) -> list[str]:
    return [
        "Two readings. Text: a_0 = 0.09, no noise in the first quarter of a cycle, SGLD 0.05 k^-0.55. Code: a_0 = "
        "0.07, noise throughout and less of it by the gradient's own, the first 50 draws of a cycle left out, SGLD "
        "0.043 for 500 steps and 0.043 (k - 500)^-0.55 after them. The text's numbers are lost in the stored "
        "version and restored from memory; in both, noise of variance 1 is added to each gradient, as in the code.",
        "The cycles have ceil(K/M) steps, the last one fewer; the code has them of K/M, which is no whole number at "
        f"M = {run.config['cycles']}.",
    ]


def _of_draws(run: Run) -> list[str]:
    found = run.once(metrics)
    shares = [
        f"{shown(found[f'{reading}_csgld.share'])} ({reading})"
        for reading in READINGS
        if f"{reading}_csgld" in run.methods
    ]
    return [
        f"a_0 is beyond {2 * variance(run):g}, where a step of SGLD ceases to be stable in a mode: that is what "
        "throws cSGLD out of it. Its draws are collected while the step is still large, so that they are far too "
        f"wide, which coverage does not tell: its share of draws within {RADIUS:g} of a centre is "
        f"{' and '.join(shares)}, where the target has {value(found['theory.share']):.3f}.",
        "The authors' stored chains, by the same rule: SGLD covers 1 mode, four cover 4, cSGLD 20, four 25, with "
        "shares of 0.666, 0.657, 0.340 and 0.341 within 0.25: as here with the settings of the code, and as in the "
        "exchanged table.",
        "Weights of modes are no test of cSGLD: 30 visits to 25 modes are uneven by chance. They come out more even "
        "than that because draws of early, large steps are spread over all modes.",
    ]


def _of_others(run: Run) -> list[str]:
    lines = []
    if {"sghmc", "csghmc", "sgnht"} <= set(run.methods):
        lines.append(
            "Beyond the paper: what finds modes is the cycle, not momentum. SGHMC and SGNHT stay where they begin "
            "as SGLD does; the first step of cSGHMC is the largest of those that were tried."
        )
    if {"sgnht", "tact_hmc"} <= set(run.methods):
        lines.append(
            "SGNHT and TACT-HMC are a little too narrow, as thermostats at friction 0.1 are at any step: by a "
            "twentieth, and by what the gradient's noise adds to the friction."
        )
    if "tact_hmc" in run.methods:
        draws = run.once(tallies)["tact_hmc"].draws.mean()
        near = draws * value(run.once(metrics)["theory.share"]) / len(centres(run))
        lines.append(
            f"TACT-HMC's draws are those at the temperature of the target, {draws:,.0f} of "
            f"{run.methods['tact_hmc']['steps']:,} steps: a mode with its share of them has {near:,.0f} within "
            f"{RADIUS:g}, hardly more than the {ENOUGH} that the rule asks for. It is the one method here that goes "
            "from mode to mode and has nearly their width."
        )
    return lines
