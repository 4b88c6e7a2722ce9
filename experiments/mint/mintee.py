"""MINTEE on the means of fifty Gaussians: modes, rings, jumps and costs (Li & Wong 2017, section 5.3, Appendix D)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.vocabulary import Array, Run

from .mintee_ladders import energies, jumps, ladder_of, lowest, rings, rung_draws, sampled, shown

PAPER = (  # Table 3: T, m, per cent of samples in each ring
    (1.00, 100000, (51.08, 4.76, 6.45, 8.44, 10.00, 9.73, 9.55)),
    (19.41, 5378, (40.15, 5.01, 7.14, 9.63, 12.20, 12.72, 13.16)),
    (27.13, 3841, (34.80, 4.91, 7.16, 10.11, 13.09, 14.37, 15.57)),
    (37.93, 2743, (29.93, 4.78, 7.05, 10.23, 13.97, 15.82, 18.22)),
    (53.02, 1959, (22.20, 4.17, 6.42, 9.93, 14.40, 18.17, 24.71)),
    (74.06, 1400, (13.60, 3.16, 5.12, 8.45, 13.69, 20.02, 35.96)),
    (103.51, 1000, (6.08, 1.74, 3.07, 5.60, 10.44, 18.71, 54.37)),
)
LARGE = 1.2  # a coordinate above it is the mode's own: peaks are at 0 and 2
CELLS = np.arange(-1.5, 3.5001, 0.05)
BINS = (5, 10, 20, 30, 50, 100, 200)  # of a histogram over the range of the draws
# Least share of the draws on a side of LARGE that is a peak: a quarter of what 50 equal modes give
PEAK = 0.005


def shares(run: Run, method: str) -> Array:
    """Return the share of each mode in each ladder's draws at T = 1, (ladders, D)."""
    mode = run.draws(method).argmax(-1)
    return np.stack([np.bincount(row, minlength=run.target.dim) / len(row) for row in mode])


class Uniformity(NamedTuple):
    """Whether modes are visited alike."""

    effective: float  # independent visits, of all ladders together
    chi2: float
    p: float


def uniformity(found: Array) -> Uniformity:
    """Return how the shares (ladders, D) compare with 1/D.

    As many independent visits as give the variance that is there between ladders, pooled over modes; with them,
    Pearson's chi-squared of the mean shares. The visits are themselves estimated, so that the statistic over D - 1 has
    the F distribution of D - 1 and (D - 1)(ladders - 1) degrees of freedom.
    """
    ladders, modes = found.shape
    if ladders < 2:
        return Uniformity(math.nan, math.nan, math.nan)
    between = found.var(axis=0, ddof=1).sum()
    if between == 0:
        return Uniformity(math.nan, math.nan, math.nan)
    p = 1 / modes
    per_ladder = (1 - p) / between
    chi2 = float(ladders * per_ladder * np.square(found.mean(axis=0) - p).sum() / p)
    tail = stats.f.sf(chi2 / (modes - 1), modes - 1, (modes - 1) * (ladders - 1))
    return Uniformity(float(ladders * per_ladder), chi2, float(tail))


def heights(values: Array, cells: Array = CELLS) -> tuple[float, float, float]:
    """Return where the histogram of values has its peaks near 0 and near 2, and the ratio of their heights.

    NaN for a peak whose side of `LARGE` has less than a share `PEAK` of the values, and for the ratio then.
    """
    counts, edges = np.histogram(values, cells)
    centres, least = 0.5 * (edges[:-1] + edges[1:]), PEAK * values.size
    sides = [np.where(side, counts, 0) for side in (centres < LARGE, centres > LARGE)]
    peaks = [float(centres[side.argmax()]) if side.sum() >= least else math.nan for side in sides]
    ratio = sides[0].max() / sides[1].max() if all(map(math.isfinite, peaks)) else math.nan
    return peaks[0], peaks[1], float(ratio)


def height_ratio(values: Array, bins: int) -> float:
    """Return the ratio of the two heights in a histogram of so many equal bins over the range of the values."""
    return heights(values, np.linspace(values.min(), values.max(), bins + 1))[2]


class Elbow(NamedTuple):
    """The objective of k-means, per draw."""

    clusters: npt.NDArray[np.int64]
    objective: Array
    best: int  # where the second difference is largest
    knee: float  # where two straight lines meet


def picked(run: Run) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return some draws (P, D) of the method shown at T = 1, evenly, and the mode of each."""
    draws = run.draws(shown(run)).reshape(-1, run.target.dim)
    points = draws[:: max(1, len(draws) // run.config["points"])][: run.config["points"]]
    return points, points.argmax(-1)


def elbow(run: Run) -> Elbow:
    """Return the objective against the number of clusters, and where its second difference is largest."""
    from sklearn.cluster import KMeans

    points, _ = picked(run)
    limit = min(run.config["clusters"], len(points) - 1)
    clusters = np.arange(1, limit + 1)
    settings = {"n_init": run.config["restarts"], "random_state": 0}
    objective = np.array([KMeans(int(c), **settings).fit(points).inertia_ for c in clusters]) / len(points)
    bend = np.diff(objective, 2)
    best = int(clusters[1:-1][bend.argmax()]) if len(bend) else 0
    return Elbow(clusters, objective, best, knee(clusters.astype(float), objective))


def knee(x: Array, y: Array) -> float:
    """Return where two straight lines meet that fit y (n,) at x (n,) best, each at least two points."""
    meeting, least = math.nan, math.inf
    for cut in range(2, len(x) - 1):
        lines = [np.polyfit(x[part], y[part], 1) for part in (slice(cut), slice(cut, None))]
        squares = np.square(np.polyval(lines[0], x[:cut]) - y[:cut]).sum()
        squares += np.square(np.polyval(lines[1], x[cut:]) - y[cut:]).sum()
        (a, b), (c, d) = lines
        if squares < least and a != c:
            meeting, least = float((d - b) / (a - c)), float(squares)
    return meeting


def falls(numbers: Array, slack: float = 0.0) -> float:
    """Return how many neighbours, from cold to hot, are in falling order, give or take `slack`."""
    return float(np.sum(np.diff(numbers) < slack))


def cost(run: Run, method: str) -> dict[str, float]:
    """Return what a method evaluated, over N n and beside the equi-energy sampler on all data."""
    summary, n = run.methods[method], run.target.n
    rungs = run.rungs(method)
    steps = summary["steps"] + run.config["burn"]
    return {
        "per_sample": summary["likelihood_evals"] / (summary["steps"] * n),
        "saved": rungs * (rungs + 1) / 2 * steps * n / summary["likelihood_evals"],
    }


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable.by_method(run, _of_method, sampled(run))
    main = shown(run)
    if "stagger" in run.config["methods"][main]["kernel"] and "burn" in run.config:
        table |= _of_table3(run)
    at = run.cached(elbow)
    table["elbow"], table["knee"] = float(at.best), at.knee
    return table


def _of_method(run: Run, method: str) -> Metrics:
    draws, visited = run.draws(method), shares(run, method)
    evenness = uniformity(visited)
    large = draws > LARGE
    low, high, _ = heights(draws[..., 0])
    ratios = {f"height_ratio_{bins}": height_ratio(draws, bins) for bins in BINS}
    pooled = visited.mean(axis=0)
    summary = run.methods[method]
    coldest = rung_draws(run, method)[:, 0].reshape(-1, run.target.dim)
    cold = energies(run, coldest[:: max(1, len(coldest) // 4000)]) - lowest(run)
    by_ladder = np.array([part.mean() for part in np.array_split(cold, max(2, len(draws)))])
    numbers: Metrics = {
        "modes": float((pooled > 0).sum()),
        "modes_least": float((visited > 0).sum(axis=1).min()),
        "modes_most": float((visited > 0).sum(axis=1).max()),
        "evenness": float(pooled.max() / pooled.min()) if pooled.min() > 0 else math.inf,
        "spread": float(pooled.std() / pooled.mean()),
        "visits": evenness.effective,
        "chi2": evenness.chi2,
        "p": evenness.p,
        "mass_ratio": estimate((~large).sum(axis=(1, 2)) / np.maximum(large.sum(axis=(1, 2)), 1)),
        "height_ratio": heights(draws)[2],
        **ratios,
        "lower_peak": low,
        "upper_peak": high,
        "first_ratio": float((~large[..., 0]).sum() / max(1, large[..., 0].sum())),
        "energy": estimate(by_ladder),
        "likelihoods": float(summary["likelihood_evals"]),
        "gradients": float(summary["gradient_evals"]),
        "seconds": float(summary["wall_s"]),
        "per_visit": float(summary["likelihood_evals"]) / evenness.effective,
    }
    if run.rungs(method) > 1:
        for rung, (offered, rate) in enumerate(jumps(run, method)):
            if offered:
                numbers[f"jump{rung}"] = rate
    return numbers


def _of_table3(run: Run) -> Metrics:
    ladder, measured = ladder_of(run, shown(run)), run.cached(rings)
    temperatures_alike = [abs(t - row[0]) < 0.006 for t, row in zip(ladder.temperatures, PAPER, strict=False)]
    sizes_alike = [m == row[1] for m, row in zip(ladder.sizes, PAPER, strict=False)]
    spent = cost(run, shown(run))
    return {
        "table3.temperatures": float(sum(temperatures_alike)),
        "table3.sizes": float(sum(sizes_alike)),
        "table3.sums": float(sum(abs(sum(row[2]) - 100) < 0.015 for row in PAPER)),
        "ladder.last": ladder.sizes[0] / ladder.sizes[1],
        "table3.low": falls(100 * measured.noisy[:, 0], 2.0),
        "table3.high": falls(-100 * measured.noisy[:, -1]),
        "table3.low_exact": float((measured.exact[1:, 0] == 0).sum()),
        "table3.energy": falls(-measured.mean),
        "table3.noise": float(measured.noise[1:].min()),
        "table3.off": float(
            np.abs(100 * measured.noisy - np.array([row[2] for row in PAPER])[: len(measured.noisy)]).max()
        ),
        "cost.per_sample": spent["per_sample"],
        "cost.saved": spent["saved"],
    }
