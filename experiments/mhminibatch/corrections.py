"""Table 3 of Seita et al. (2017): how near N(0, sigma^2) + X_corr comes to a logistic variable."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import special, stats

from mhrun.report.plots import lines, panels
from mhrun.report.vocabulary import COLOURS, Array, Figure, Run, Style, by_rows
from mhrun.rules.correction import Correction, convolved_cdf, correction, nonnegative, ridges

SIMULATED = 40_000  # means for each row of the bounds
AT = np.linspace(-12, 12, 1201)


def solved(run: Run) -> dict[tuple[int, float, float], Correction]:
    """Return the paper's corrections by (G, sigma, lambda)."""
    lambdas = [float(lam) for lam in run.config["lambdas"]]
    return {
        (half, sigma, lam): solution
        for half in run.config["half_widths"]
        for sigma in run.config["sigmas"]
        for lam, solution in zip(lambdas, ridges(sigma, lambdas, half), strict=True)
    }


def metrics(run: Run) -> dict[str, float]:
    """Return the metrics of the claims and tables."""
    paper = run.cached(solved)
    numbers = {f"{half}.{sigma:g}.{lam:g}": solution.error for (half, sigma, lam), solution in paper.items()}
    for half in run.config["half_widths"]:
        best = [
            min(solution.error for (g, s, _), solution in paper.items() if (g, s) == (half, sigma))
            for sigma in run.config["sigmas"]
        ]
        numbers[f"{half}.best_grows"] = float(np.sum(np.diff(best) > 0))
    return numbers


def table3(run: Run) -> pd.DataFrame:
    """The largest distance of distribution functions (Table 3)."""
    rows: dict[str, dict[str, float]] = {}
    for (half, sigma, lam), solution in run.cached(solved).items():
        rows.setdefault(f"G = {half}, lambda = {lam:g}", {})[f"sigma = {sigma:g}"] = solution.error
    return by_rows(rows)


def better(run: Run) -> pd.DataFrame:
    """Corrections without the limits of the paper's grid."""
    rows = {}
    paper = run.cached(solved)
    for sigma in run.config["sigmas"]:
        positive = nonnegative(sigma)
        rows[f"sigma = {sigma:g}"] = {
            "clipped": min(solution.error for (_g, s, _l), solution in paper.items() if s == sigma),
            "not negative": float(np.abs(convolved_cdf(positive, AT, sigma) - special.expit(AT)).max()),
            "Kolmogorov": float(np.abs(kolmogorov_cdf(AT, sigma) - special.expit(AT)).max()),
            "variance": positive.variance,
            "should be": np.pi**2 / 3 - sigma**2,
        }
    return by_rows(rows)


def bounds(run: Run) -> pd.DataFrame:
    """The error bound that MHminibatch is to check (Corollary 1), and what it bounds."""
    rng = np.random.default_rng(int(run.config["seed"]))
    kinds: dict[str, tuple[float, float, float, Callable[[tuple[int, int]], Array]]] = {
        # third and first absolute moment, skewness
        "two points": (1.0, 1.0, 0.0, lambda shape: rng.choice([-1.0, 1.0], shape)),
        "normal": (2 * np.sqrt(2 / np.pi), np.sqrt(2 / np.pi), 0.0, rng.standard_normal),
        "exponential": (12 / np.e - 2, 2 / np.e, 2.0, lambda shape: rng.exponential(size=shape) - 1),
    }
    rows = {}
    for name, (third, first, skewness, draw) in kinds.items():
        for b in (50, 100, 200, 1000):
            parts = (draw((2000, b)) for _ in range(SIMULATED // 2000))
            t = np.concatenate([x.mean(axis=1) / x.std(axis=1) * np.sqrt(b) for x in parts])
            rows[f"{name}, b = {b}"] = {
                "bound": (6.4 * third + 2 * first) / np.sqrt(b),
                "distance": float(stats.kstest(t, "norm").statistic),
                "Edgeworth": 0.1256 * skewness / np.sqrt(b),
            }
    return by_rows(rows)


def kolmogorov_cdf(x: Array, sigma: float) -> Array:
    """Return the cdf at x of N(0, sigma^2) + sqrt(max(4 K^2 - sigma^2, 0)) Z, K Kolmogorov: by quadrature over K."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    parts = [(0.05, sigma / 2), (sigma / 2, 3.95)]  # the integrand has a kink where 2 K = sigma
    k = np.concatenate([(a + b) / 2 + (b - a) / 2 * nodes for a, b in parts])
    share = np.concatenate([(b - a) / 2 * weights for a, b in parts])
    terms = np.arange(1, 60)[:, None]
    # The density of K: 8 k sum (-1)^(j-1) j^2 exp(-2 j^2 k^2), and its other series where that one is slow.
    slow = 8 * k * ((-1.0) ** (terms - 1) * terms**2 * np.exp(-2 * terms**2 * k**2)).sum(axis=0)
    odd = (2 * terms - 1) ** 2 * np.pi**2 / 8
    fast = np.sqrt(2 * np.pi) / k**2 * ((2 * odd / k**2 - 1) * np.exp(-odd / k**2)).sum(axis=0)
    density = np.where(k < 0.8, fast, slow)
    spread = np.maximum(2 * k, sigma)
    return special.ndtr(x[:, None] / spread) @ (share * density)


def errors(run: Run) -> Figure:
    """Where the distribution functions differ."""
    panel_style: Style = {"xlabel": "x", "ylabel": "difference of distribution functions", "xlim": (-12, 12)}
    figure, (axis,) = panels(1, size=(5.6, 3.2), **panel_style)
    cdfs = {
        "clipped (the paper's)": convolved_cdf(correction("paper", 1.0), AT, 1.0),
        "not negative": convolved_cdf(nonnegative(1.0), AT, 1.0),
        "Kolmogorov": kolmogorov_cdf(AT, 1.0),
    }
    lines(axis, AT, {name: cdf - special.expit(AT) for name, cdf in cdfs.items()})
    axis.legend()
    return figure


def densities(run: Run) -> Figure:
    """The density of X_corr, sigma = 1."""
    panel_style: Style = {
        "xlabel": "x",
        "ylabel": "density",
        "xlim": (-12, 12),
        "yscale": "log",
        "ylim": (1e-7, 1),
    }
    figure, (axis,) = panels(1, size=(5.6, 3.2), **panel_style)
    axis.plot(AT, special.expit(AT) * special.expit(-AT), color="grey", linewidth=1, label="logistic")
    shown = {"clipped (the paper's)": correction("paper", 1.0), "not negative": nonnegative(1.0)}
    for (label, solution), colour in zip(shown.items(), COLOURS, strict=False):
        axis.plot(solution.points, solution.masses / solution.step, color=colour, linewidth=1.1, label=label)
    axis.legend()
    return figure
