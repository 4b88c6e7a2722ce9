"""Section 4.1 of Luo et al. (2020): a mixture of five Gaussians, with noise on energies and gradients; Figure 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mhrun.diagnostics.chains import ess_of_chain
from mhrun.diagnostics.ladders import ReplicaFlow
from mhrun.report.metrics import Metrics, MetricTable, estimate, value
from mhrun.report.vocabulary import Array, Estimate, Run, by_rows

from ..shared.coverage import Tally, ratio, tally
from ..shared.plane import centres, collected, variance

ENOUGH = 0.01  # of its draws: then a chain has visited a mode
REACH = 2.0  # draws within it of a centre are of that mode, for the variance: less than half of the modes' distance
PAPER_ESS = Estimate(4163.8, math.nan)  # of 10^5 samples


def tallies(run: Run) -> dict[str, Tally]:
    """Return the counts of every method about the modes: within 3 standard deviations, and by nearest centre."""
    radius = 3 * math.sqrt(variance(run))
    return {method: tally(collected(run, method), centres(run), [radius], REACH) for method in run.methods}


def travels(run: Run) -> dict[str, ReplicaFlow]:
    """Return how the replicas of every ladder travelled."""
    return {method: run.replica_flow(method) for method in run.methods if run.rungs(method) > 1}


def nearest(run: Run, draws: Array) -> npt.NDArray[np.intp]:
    """Return which centre each draw (S, 2) is nearest to (S,)."""
    gaps = np.stack([np.square(draws - centre).sum(axis=-1) for centre in centres(run)])
    return gaps.argmin(axis=0)


def mode_shares(near: npt.NDArray[np.intp], modes: int) -> Array:
    """Return the share of each centre in what `nearest` returned, (K,); NaN without draws."""
    return ratio(np.bincount(near, minlength=modes), np.array([len(near)]))


def weights(run: Run, method: str) -> tuple[Array, Array]:
    """Return the modes' weights (K,) over all chains, and standard errors by the indicators' effective sizes."""
    chains = [nearest(run, draws) for draws in collected(run, method)]
    modes = len(centres(run))
    visited = np.array([mode_shares(chain, modes) for chain in chains])
    with np.errstate(invalid="ignore"):
        sizes = np.array(
            [[ess_of_chain((chain == k).astype(float)) for k in range(modes)] for chain in chains]
        )
    size = np.nansum(sizes, axis=0)
    share = visited.mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.where(size > 0, np.sqrt(share * (1 - share) / size), 0.0)
    return share, errors


def metrics(run: Run) -> MetricTable:
    """Return the metrics of the claims and tables."""
    table = MetricTable.by_method(run, _metrics)
    for method in run.cached(travels):
        table.add(method, _of_ladder(run, method))
    if {"renhd", "sgnht"} <= set(run.methods):
        table["renhd.livelier"] = table.number("renhd.changes") / (1 + table.number("sgnht.changes"))
    if {"kept", "tact"} <= set(run.methods):
        table.add("tact", _against_tact_hmc(run, table))
    return table


def _metrics(run: Run, method: str) -> Metrics:
    counts, draws = run.cached(tallies)[method], collected(run, method)
    modes, radius = len(centres(run)), 3 * math.sqrt(variance(run))
    share, errors = weights(run, method)
    by_chain = counts.weights
    nearest_modes = [nearest(run, chain) for chain in draws]
    outside = 1 - counts.share(radius)
    distance = 0.5 * float(np.abs(share - 1 / modes).sum())
    effective = np.array([np.nanmin(ess_of_chain(chain.T)) if len(chain) > 3 else np.nan for chain in draws])
    visited = (by_chain > ENOUGH).sum(axis=1)
    summary = run.methods[method]
    return {
        "draws": float(counts.draws.mean()),
        "modes": estimate(visited.astype(float)),
        "modes_all": float((share > ENOUGH).sum()),
        "few": float((visited <= 2).mean()),
        "right": float(((np.abs(share - 1 / modes) < 4 * errors) & (errors > 0)).sum()),
        "distance": distance,
        "outside": estimate(outside),
        "variance": estimate(counts.squares / variance(run)),
        "ess": estimate(effective),
        "ess_share": estimate(ratio(effective, counts.draws)),
        "changes": estimate(np.array([(np.diff(chain) != 0).sum() for chain in nearest_modes], float)),
        "gradients": summary["gradient_evals"]
        * (summary["steps"] / (summary["steps"] + summary["warmup"]))
        / (counts.draws.sum() or math.nan),
        "seconds": summary["wall_s"],
        "ess_per_second": float(np.nansum(effective)) / summary["wall_s"],
    }


def _of_ladder(run: Run, method: str) -> Metrics:
    flow = run.cached(travels)[method]
    rates = flow.rates.mean(axis=0)
    rounds = flow.replica.shape[1]
    return {
        "swap_rate": estimate(flow.rates.mean(axis=1)),
        "swap_least": float(rates.min()),
        "swap_most": float(rates.max()),
        "trips": estimate(flow.round_trips.astype(float)),
        "rounds_per_trip": rounds / max(1.0, float(flow.round_trips.mean())),
        "own_share": float((flow.replica == 0).mean()),
    }


def _against_tact_hmc(run: Run, numbers: Metrics) -> Metrics:
    """Return draws at temperature 1 for each gradient over TACT-HMC's: of all gradients, and of one replica's."""
    ladder, tact = (1 / value(numbers[f"{name}.gradients"]) for name in ("kept", "tact"))
    rungs = run.rungs("kept")
    # TACT-HMC's draws are kept every `every` steps, as RENHD's are: after as many gradients of one chain.
    return {
        "ratio": ladder / tact,
        "ratio_side_by_side": rungs * ladder / tact,
        "ess_ratio": (value(numbers["kept.ess_share"]) * ladder) / (value(numbers["tact.ess_share"]) * tact),
    }


def ladders(run: Run) -> pd.DataFrame:
    """What of exchanges was made between each two rungs, and how replicas travelled."""
    rows: dict[str, dict[str, Any]] = {}
    for method, flow in run.cached(travels).items():
        rates = flow.rates.mean(axis=0)
        rows[run.label(method)] = {f"{j} – {j + 1}": float(rate) for j, rate in enumerate(rates)} | {
            "round trips": estimate(flow.round_trips.astype(float)),
            "rounds for each": value(run.cached(metrics)[f"{method}.rounds_per_trip"]),
        }
    return by_rows(rows)


def unbiased(run: Run) -> pd.DataFrame:
    """Draws at temperature 1 by RENHD and by TACT-HMC, as the paper counts them, and effective ones."""
    numbers, rungs = run.cached(metrics), run.rungs("kept")
    draws = {name: 1e6 / value(numbers.get(f"{name}.gradients")) for name in ("kept", "tact")}
    shares = {name: value(numbers.get(f"{name}.ess_share")) for name in draws}

    def row(renhd: float, tact: float, ratio: str) -> dict[str, Any]:
        return {"RENHD": renhd, "TACT-HMC": tact, "ratio": numbers.get(f"tact.{ratio}")}

    effective = [shares[name] * 1e6 / value(numbers.get(f"{name}.gradients")) for name in draws]
    return by_rows(
        {
            "draws at T = 1 per 10^6 gradients": row(draws["kept"], draws["tact"], "ratio"),
            "the same, replicas side by side": row(
                rungs * draws["kept"], draws["tact"], "ratio_side_by_side"
            ),
            "effective draws per 10^6 gradients": row(effective[0], effective[1], "ess_ratio"),
        }
    )
