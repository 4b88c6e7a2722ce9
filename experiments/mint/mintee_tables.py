"""Tables and notes of MINTEE (Li & Wong 2017, section 5.3, Appendix D)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from mhrun.report.run import Run

from ..shared.measures import value
from .mintee import (
    BINS,
    ENERGIES,
    PAPER,
    elbow,
    energies,
    jumps,
    ladder_of,
    lowest,
    metrics,
    moved,
    rings,
    rung_draws,
    sampled,
    shown,
    uniformity,
)


def table3(run: Run) -> pd.DataFrame:
    """Table 3: per cent of the samples of each rung in each energy ring, printed and here.

    For each rung the paper's row; then the same draws of ours by energies from a fresh minibatch of the rung's size,
    -(n/m) sum l_i, which is what the algorithm goes by; then by exact energies, from all data. 600 draws of each rung.
    """
    found, seen, rows = ladder_of(run, shown(run)), run.once(rings), {}
    names = [
        "< H1",
        *(f"[H{j}, H{j + 1})" for j in range(1, len(found.sizes) - 1)),
        f">= H{len(found.sizes) - 1}",
    ]
    for rung, (t, m) in enumerate(zip(found.temperatures, found.sizes, strict=True)):
        if rung < len(PAPER):
            row = PAPER[rung]
            rows[f"rung {rung}, paper"] = {"T": row[0], "m": row[1], **dict(zip(names, row[2], strict=False))}
        for label, part in (("minibatch energies", seen.noisy), ("exact energies", seen.exact)):
            rows[f"rung {rung}, {label}"] = {
                "T": t,
                "m": m,
                **dict(zip(names, 100 * part[rung], strict=True)),
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def rungs(run: Run) -> pd.DataFrame:
    """Each rung: what it reads, accepts and visits.

    "Local" and "jumps": shares accepted, the latter of offers to this rung by the next hotter one (by neighbours, where
    replicas are exchanged). Modes: how many of the 50 are the largest coordinate of a draw, in all ladders; visits: how
    many independent draws of modes their shares are worth, from what differs between ladders. Energy: exact, mean
    above that of theta*, in units of T.
    """
    rows = {}
    for method in (m for m in sampled(run) if run.rungs(m) > 1):
        found, draws, offers = ladder_of(run, method), rung_draws(run, method), jumps(run, method)
        local, base = moved(run, method), lowest(run)
        for rung, t in enumerate(found.temperatures):
            mode = draws[:, rung].argmax(-1)
            seen = np.stack([np.bincount(row, minlength=run.target.dim) / len(row) for row in mode])
            some = draws[:, rung].reshape(-1, run.target.dim)
            some = some[:: max(1, len(some) // ENERGIES)]
            rows[f"{run.label(method)}, {rung}"] = {
                "T": t,
                "m": found.sizes[rung],
                "local": local[rung],
                "offered": offers[rung][0] or None,
                "jumps": offers[rung][1] if offers[rung][0] else None,
                "modes": int((seen.sum(axis=0) > 0).sum()),
                "visits": uniformity(seen).effective,
                "energy / T": float((energies(run, some) - base).mean() / t),
            }
    return _told(rows)


COLUMNS = {
    "modes": "modes",
    "least in a ladder": "modes_least",
    "visits": "visits",
    "chi-squared": "chi2",
    "p": "p",
    "largest / smallest share": "evenness",
    "energy": "energy",
    "likelihoods": "likelihoods",
    "gradients": "gradients",
    "likelihoods per visit": "per_visit",
    "seconds": "seconds",
}


def modes(run: Run) -> pd.DataFrame:
    """Which modes are visited at T = 1, and how evenly.

    Visits: how many independent draws of modes the shares are worth, all ladders or chains together, from the variance
    between them; chi-squared: of their mean shares from 1/50 with so many visits, 49 degrees of freedom, p from the F
    distribution, as the visits are estimated. Energy: mean above that of theta*. Likelihoods and gradients: of single
    data, all rungs, burn-in too.
    """
    found, rows = run.once(metrics), {}
    for method in sampled(run):
        rows[run.label(method)] = {name: found[f"{method}.{metric}"] for name, metric in COLUMNS.items()}
    return _told(rows)


def heights(run: Run) -> pd.DataFrame:
    """Height of the lower peak over that of the upper one, by the number of bins (Figure 4, left: about 50).

    Histograms of all coordinates of the draws at T = 1, with so many equal bins over their range; ten is the default
    of NumPy and Matplotlib. Last: the ratio of the masses on the two sides of 1.2, which is 49 by symmetry. Bins as
    wide as a peak show the masses, narrow ones the densities, of which the exact posterior has about 15.
    """
    found = run.once(metrics)
    rows = {
        run.label(method): {f"{bins} bins": found[f"{method}.height_ratio_{bins}"] for bins in BINS}
        | {"mass": found[f"{method}.mass_ratio"]}
        for method in sampled(run)
    }
    return _told(rows)


def _told(rows: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """Return a table without the columns that nothing is known of: one ladder tells no visits."""
    return pd.DataFrame.from_dict(rows, orient="index").dropna(axis=1, how="all")


# --- Notes ---------------------------------------------------------------------------------------------------


def printed(run: Run) -> list[str]:
    """What a reader should know beside the numbers of the run as printed."""
    found, seen, main = run.once(metrics), run.once(rings), shown(run)
    ladder, offers = ladder_of(run, main), jumps(run, main)
    rates = ", ".join(
        f"{100 * made.value:.2g} % into T = {t:.4g}"
        for (offered, made), t in zip(offers, ladder.temperatures, strict=True)
        if offered
    )
    kernel = run.config["methods"][main]["kernel"]
    bank = (run.rungs(main) - 1) * kernel["capacity"] * (8 * run.target.dim + 16)
    if ladder.sizes[0] == run.target.n:
        energy = (
            f"At T = 1 energies are exact and lie {seen.mean[0]:.0f} nats above H_0; at T = "
            f"{ladder.temperatures[1]:.4g} they lie {seen.mean[1]:.0f} above. A chain at T = 1 is in the lowest ring "
            "or in [H_1, H_2), 10 to 204 nats, and so are points of the hotter bank, by minibatch noise or at the "
            "upper end of the latter; topped up to all data they have their true energy, 100 nats and more above the "
            "chain's, each of which counts in full at T = 1."
        )
        width = (
            "the row of T = 1 too, whose energies are from all data and have no noise; at the printed m the width "
            "changes twofold from rung to rung."
        )
    else:
        worth = [run.target.n / t for t in ladder.temperatures]
        noisy = ", ".join(str(k) for k, (c, m) in enumerate(zip(worth, ladder.sizes, strict=True)) if c > m)
        energy = (
            f"At T = 1 energies are from {ladder.sizes[0]:,} data, whose noise is {seen.noise[0]:,.0f} nats. n/T "
            f"exceeds m on rungs {noisy}: minibatch noise dominates their test, and they sample a hotter distribution "
            f"than their temperature's. Exact energies of the draws lie {seen.mean[0]:.0f} nats above H_0 at T = 1, "
            "where the posterior has about 12."
        )
        width = "as here, where every rung reads as many data."
    return [
        f"Jumps made: {rates}. {energy} Modes visited there: {value(found[f'{main}.modes']):.0f} of 50.",
        f"Table 3 is noise: the standard deviation of -(n/m) sum l_i is {seen.noise[1]:,.0f} nats at m = "
        f"{ladder.sizes[1]:,} and {seen.noise[-1]:,.0f} at m = {ladder.sizes[-1]:,}, rings are 10 to 741 wide. The "
        f"printed rows are normal distributions of one width, about 1,500 nats, cut at H_1, ..., H_6, {width}",
        f"Readings: alpha = {run.config['alpha']} (T = n/m^alpha; all six printed temperatures have it); proposal "
        "noise epsilon z, not epsilon^2 z; both points of a local move on one fresh minibatch, and the energy of a "
        "point from that minibatch; energies below H_k pull with no gradient; step sizes adapt in each rung's own "
        "burn-in alone; prior uniform on [-10, 10]^50, as the posterior is improper without it.",
        f"Banks hold a uniform sample of each rung's history, {kernel['capacity']:,} points: {bank / 1e6:.0f} MB in "
        f"all. Theta is kept of every {run.methods[main]['thin']}th step, statistics of every "
        f"{run.methods[main]['thin_stats']}nd.",
        f"Cost: {value(found['cost.per_sample']):.2f} n N log-likelihoods of single data (every local move of MINT "
        f"scores two points), {value(found['cost.saved']):.1f} times fewer than the equi-energy sampler on all data; "
        "the condition for O(n N), that minibatches grow to n at the printed rate (Figure 7), is not met by the "
        "printed ladder: 5,378 is followed by 100,000 (Table 3). A log-likelihood is counted as one datum's; sums over "
        "data come from a few hundred nodes, exact to rounding (`mhrun.models.mixture_means`).",
        "The peaks of a coordinate have masses 49 to 1 but heights of about 15 to 1 in the posterior: the one near 2 "
        "is narrow (sd 0.04), the one at 0 wide (0.16). A histogram with few bins shows more; see the table of "
        "heights.",
    ]


def works(run: Run) -> list[str]:
    """What had to change, and what it took."""
    found = run.once(metrics)
    main = shown(run)
    kernel = run.config["methods"][main]["kernel"]
    bank = run.methods[main]["chains"] * kernel["capacity"] * (8 * run.target.dim + 16)
    lines = [
        "What had to change. The ladder: between T = 19.4 and 1 there is nothing, so that no energy is in both rungs; "
        "here neighbours differ by 1.5, and the ladder ends where local moves cross barriers (16 nats at T = 1). The "
        "levels: with c = 10 and a dense ladder the floors H_k = H_0 + 10 sum T_j lie above where a rung is (13 T_k "
        "above H_0), which makes it flat; with c = 4 they lie below. The energies: -(n/m) sum l_i is off by hundreds "
        "of nats; all data are read, or minibatches tell differences to the anchor, whose noise is that of the "
        "difference (all modes have one likelihood). The banks: they keep the latest points, as a sample of the whole "
        "history remembers for long in which modes a hotter rung began.",
        "What is counted as a visit: shares of modes differ between ladders that share nothing as if each had so many "
        "independent draws of a mode. What tells modes apart comes down from the hottest rungs, and each bank that it "
        "passes adds to the differences: see the visits along the rungs. More jumps or larger banks do not help (in "
        "trials p_ee = 0.3 and 0.5, or banks that reach back 40,000 steps, gave fewer visits): a jump copies what is "
        "in the bank, and local moves and forgetting are what renews it.",
        f"Banks: {kernel['capacity']:,} points of each rung but the coldest, at most {bank / 1e6:.0f} MB in all.",
    ]
    told = {name: found.get(f"{name}.per_visit") for name in sampled(run)}
    parts = [f"{run.label(name)} {number:.2g}" for name, number in told.items() if isinstance(number, float)]
    lines.append(
        f"Log-likelihoods of single data per independent visit: {'; '.join(parts)}. Visits are known to a tenth or "
        "so from four ladders; moves by Langevin take as many gradients beside."
    )
    at = run.once(elbow)
    lines.append(
        f"K-means: the second difference of the objective is largest at C = {at.best}; it picks up noise that "
        f"local minima leave at few clusters. Two lines fitted to it meet at {at.knee:.1f}. The claim on the former "
        "was written before any number, that on the latter after the first was seen."
    )
    if f"{main}.energy" in found:
        both = ", ".join(
            f"{found[f'{name}.energy'].value:.2f} ± {found[f'{name}.energy'].se:.2f} ({run.label(name)})"  # type: ignore[union-attr]
            for name in sampled(run)
        )
        lines.append(f"The law at T = 1: mean energy above that of theta*, {both}.")
    return lines
