"""Section 4.1 of Luo et al. (2020): a mixture of five Gaussians, with noise on energies and gradients; Figure 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from mhrun.diagnostics.chains import ess_of_chain
from mhrun.diagnostics.grid import Estimate
from mhrun.diagnostics.ladders import Travel
from mhrun.report.run import Run
from mhrun.report.tables import shown

from ..shared.coverage import Tally, tally
from ..shared.measures import Metrics, estimate, value

Array = npt.NDArray[np.floating]

ENOUGH = 0.01  # of its draws: then a chain has visited a mode
REACH = 2.0  # draws within it of a centre are of that mode, for the variance: less than half of the modes' distance
PAPER_ESS = Estimate(4163.8, math.nan)  # of 10^5 samples


def centres(run: Run) -> Array:
    """Return the centres of the mixture (K, 2)."""
    return np.array(run.config["model"]["centres"], float)


def variance(run: Run) -> float:
    """Return the variance of its components."""
    return float(run.config["model"]["variances"])


def collected(run: Run, method: str) -> list[Array]:
    """Return the draws of each ladder's coldest chain (S, 2), or of each chain, those of the target's law."""
    draws = run.draws(method, marked=True)
    return [chain[valid] for chain, valid in zip(draws, run.valid(method), strict=True)]


def tallies(run: Run) -> dict[str, Tally]:
    """Return the counts of every method about the modes: within 3 standard deviations, and by nearest centre."""
    radius = 3 * math.sqrt(variance(run))
    return {method: tally(collected(run, method), centres(run), [radius], REACH) for method in run.methods}


def travels(run: Run) -> dict[str, Travel]:
    """Return how the replicas of every ladder travelled."""
    return {method: run.travel(method) for method in run.methods if run.rungs(method) > 1}


def nearest(run: Run, draws: Array) -> npt.NDArray[np.intp]:
    """Return which centre each draw (S, 2) is nearest to (S,)."""
    gaps = np.stack([np.square(draws - centre).sum(axis=-1) for centre in centres(run)])
    return gaps.argmin(axis=0)


def weights(run: Run, method: str) -> tuple[Array, Array]:
    """Return the modes' weights (K,) over all chains, and standard errors by the indicators' effective sizes."""
    chains = [nearest(run, draws) for draws in collected(run, method)]
    modes = len(centres(run))
    seen = np.array([[(chain == k).mean() for k in range(modes)] for chain in chains])
    with np.errstate(invalid="ignore"):
        sizes = np.array(
            [[ess_of_chain((chain == k).astype(float)) for k in range(modes)] for chain in chains]
        )
    size = np.nansum(sizes, axis=0)
    share = seen.mean(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.where(size > 0, np.sqrt(share * (1 - share) / size), 0.0)
    return share, errors


def metrics(run: Run) -> Metrics:
    """Everything of these experiments that a claim or a table speaks of."""
    found: Metrics = {}
    for method in run.methods:
        found |= {f"{method}.{name}": number for name, number in _metrics(run, method).items()}
    for method in run.once(travels):
        found |= {f"{method}.{name}": number for name, number in _of_ladder(run, method).items()}
    if {"renhd", "sgnht"} <= set(run.methods):
        found["renhd.livelier"] = value(found["renhd.changes"]) / (1 + value(found["sgnht.changes"]))
    if {"kept", "tact"} <= set(run.methods):
        found |= _beside_tact(run, found)
    return found


def _metrics(run: Run, method: str) -> Metrics:
    counts, draws = run.once(tallies)[method], collected(run, method)
    modes, radius = len(centres(run)), 3 * math.sqrt(variance(run))
    share, errors = weights(run, method)
    by_chain = counts.weights
    near = [nearest(run, chain) for chain in draws]
    outside = 1 - counts.share(radius)
    distance = 0.5 * float(np.abs(share - 1 / modes).sum())
    effective = np.array([np.nanmin(ess_of_chain(chain.T)) if len(chain) > 3 else np.nan for chain in draws])
    visited = (by_chain > ENOUGH).sum(axis=1)
    noted = run.methods[method]
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
        "ess_share": estimate(effective / counts.draws),
        "changes": estimate(np.array([(np.diff(chain) != 0).sum() for chain in near], float)),
        "gradients": noted["gradient_evals"]
        * (noted["steps"] / (noted["steps"] + noted["warmup"]))
        / counts.draws.sum(),
        "seconds": noted["wall_s"],
        "ess_per_second": float(np.nansum(effective)) / noted["wall_s"],
    }


def _of_ladder(run: Run, method: str) -> Metrics:
    found = run.once(travels)[method]
    rates = found.rates.mean(axis=0)
    rounds = found.replica.shape[1]
    return {
        "swap_rate": estimate(found.rates.mean(axis=1)),
        "swap_least": float(rates.min()),
        "swap_most": float(rates.max()),
        "trips": estimate(found.round_trips.astype(float)),
        "rounds_per_trip": rounds / max(1.0, float(found.round_trips.mean())),
        "own_share": float((found.replica == 0).mean()),
    }


def _beside_tact(run: Run, found: Metrics) -> Metrics:
    """Return draws at temperature 1 for each gradient over TACT-HMC's: of all gradients, and of one replica's."""
    ladder, tact = (1 / value(found[f"{name}.gradients"]) for name in ("kept", "tact"))
    rungs = run.rungs("kept")
    # TACT-HMC's draws are kept every `every` steps, as RENHD's are: after as many gradients of one chain.
    return {
        "tact.ratio": ladder / tact,
        "tact.ratio_side_by_side": rungs * ladder / tact,
        "tact.ess_ratio": (value(found["kept.ess_share"]) * ladder) / (value(found["tact.ess_share"]) * tact),
    }


def table(run: Run) -> pd.DataFrame:
    """Modes and their weights, widths, and effective sizes (Figure 2).

    A chain has visited a mode that more than 1 % of its draws are nearest to. Weights: total variation distance of the
    modes' shares, all chains together, from 1/5 each; in how many the share is within 4 standard errors of it. Beyond 3
    sd: share of draws there (exact 0.011). Variance: about the nearest centre, of draws within 2 of it, over the exact.
    ESS: the lesser of the coordinates', of one chain, by Geyer's sequence, over its draws. Changes: of the nearest mode
    from draw to draw, in one chain. Gradients: for each draw, those of all rungs, after burn-in.
    """
    columns = {
        "modes visited": "modes",
        "distance of weights": "distance",
        "weights that are right": "right",
        "beyond 3 sd": "outside",
        "variance": "variance",
        "ESS / draws": "ess_share",
        "changes": "changes",
        "gradients per draw": "gradients",
        "seconds": "seconds",
    }
    return run.by_method(run.once(metrics), columns)


def ladders(run: Run) -> pd.DataFrame:
    """What of exchanges was made between each two rungs, and how replicas travelled.

    A round trip is a replica's way from temperature 1 to the hottest rung and back, in one ladder.
    """
    rows: dict[str, dict[str, Any]] = {}
    for method, found in run.once(travels).items():
        rates = found.rates.mean(axis=0)
        rows[run.label(method)] = {f"{j} – {j + 1}": float(rate) for j, rate in enumerate(rates)} | {
            "round trips": estimate(found.round_trips.astype(float)),
            "rounds for each": value(run.once(metrics)[f"{method}.rounds_per_trip"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def unbiased(run: Run) -> pd.DataFrame:
    """Draws at temperature 1 by RENHD and by TACT-HMC, as the paper counts them, and effective ones.

    Theirs: "the number of unbiased samples for each unit of time" is four times that of TACT-HMC. Per gradient, and per
    gradient that is waited for if all replicas move at the same time.
    """
    found = run.once(metrics)
    rows = {
        "draws at T = 1 per 10^6 gradients": {
            "RENHD": 1e6 / value(found.get("kept.gradients")),
            "TACT-HMC": 1e6 / value(found.get("tact.gradients")),
            "ratio": found.get("tact.ratio"),
        },
        "the same, replicas side by side": {
            "RENHD": run.rungs("kept") * 1e6 / value(found.get("kept.gradients")),
            "TACT-HMC": 1e6 / value(found.get("tact.gradients")),
            "ratio": found.get("tact.ratio_side_by_side"),
        },
        "effective draws per 10^6 gradients": {
            "RENHD": 1e6 * value(found.get("kept.ess_share")) / value(found.get("kept.gradients")),
            "TACT-HMC": 1e6 * value(found.get("tact.ess_share")) / value(found.get("tact.gradients")),
            "ratio": found.get("tact.ess_ratio"),
        },
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found, config = run.once(metrics), run.config
    lines = [
        "The paper says neither which five Gaussians nor e, c, N or how it estimates an effective size. Here: "
        f"means (0, 0) and (±4, ±4), variance {variance(run):g}, equal weights; e = {config['step_size']:g}, c = "
        f"{config['c']:g}, N = {config['every']}, chains begin at N(0, I). Thermostats are kept from call to "
        "call, and the log-ratio of an exchange has the sign that keeps the law: five_modes_variants has both as "
        "printed.",
        "The noise of an energy is drawn at each exchange anew, and its variance is known to the test, which "
        "tops it up to 0.2; that of gradients is known to no one.",
    ]
    if "renhd" in run.methods:
        lines.append(
            f"ESS: {shown(found['renhd.ess'])} of {value(found['renhd.draws']):,.0f} draws of one ladder, where "
            f"the paper has {PAPER_ESS.value:,.1f} of 100,000; exchanges are made at "
            f"{value(found['renhd.swap_least']):.2f} to {value(found['renhd.swap_most']):.2f}, and a replica "
            f"needs {value(found['renhd.rounds_per_trip']):,.0f} rounds from the coldest rung to the hottest and "
            "back (one of them at a time)."
        )
    if "flow" in run.methods:
        lines.append(
            f"The planar flow has {run.config['methods']['flow']['kernel']['layers']} layers and minimises the "
            f"reverse divergence: its four trainings found {shown(found['flow.modes'])} modes each. That is the "
            "mode-seeking of this divergence and of these flows, not of noisy gradients, which Adam averages."
        )
    return lines


def variants_notes(run: Run) -> list[str]:
    """What a reader should know of the variants."""
    found = run.once(metrics)

    def told(name: str, metric: str) -> str:
        return shown(found[f"{name}.{metric}"]) if f"{name}.{metric}" in found else "–"

    lines = [
        "Set back at every call (Algorithm 2, line 3) a thermostat has no time to adapt: it changes by about e T "
        "a step. At this little noise that costs nothing that can be seen: variance "
        f"{told('printed', 'variance')} of the exact, kept {told('kept', 'variance')}, and both are too narrow by "
        "about c / 2, as any explicit scheme with friction is; the symmetric splitting has "
        f"{told('splitting', 'variance')}.",
        "Equation 7 as printed has the sign of its log-ratio turned: it would have the hotter state stay cold. "
        f"Exchanges are made more often ({told('sign', 'swap_rate')}, right {told('kept', 'swap_rate')}), and the "
        f"variance at temperature 1 is {told('sign', 'variance')} of the exact.",
        "RELD as printed freezes s at 0.999 + c/T and keeps the noise 2 c e: SGLD at temperature c on every rung "
        f"({told('frozen', 'modes')} modes, variance {told('frozen', 'variance')}). The paper's comparison of "
        "RELD and RENHD compares temperatures. With noise of each rung's own temperature it finds "
        f"{told('reld', 'modes')} modes, variance {told('reld', 'variance')}.",
    ]
    if {"loud_kept", "loud_printed"} <= set(run.methods):
        lines.append(
            "With gradients of variance 2,500 (e = 10^-4, c = 0.1, N = 200) it is the kept thermostat that pays "
            f"for their noise: variance {told('loud_kept', 'variance')} of the exact, set back "
            f"{told('loud_printed', 'variance')}. That noise is neutralised is the point of the paper's dynamics, "
            "and Algorithm 2 as printed cannot do it."
        )
    if "blind" in run.methods:
        lines.append(
            "Barker's rule on noisy energies, taken for exact, keeps no law: variance "
            f"{told('blind', 'variance')}, distance of weights {told('blind', 'distance')} (with the noise made "
            f"part of the decision {told('reld', 'variance')}, {told('reld', 'distance')}). At a noise of this "
            "size the harm is small."
        )
    return lines
