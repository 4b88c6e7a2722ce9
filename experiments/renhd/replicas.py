"""Appendix F of Luo et al. (2020): how many replicas a harmonic potential in d dimensions needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from mhrun.report.metrics import Metrics
from mhrun.report.plots import finished, lines, panels
from mhrun.report.vocabulary import COLOURS, Figure, Run, by_rows, log_slope

NODES = 161  # of the quadrature, along each energy: halving them changes nothing in the first eight digits


def swap_rate(tau: float, dim: int) -> float:
    """Return the mean probability of Barker's exchange of two replicas in equilibrium at temperatures 1 and tau.

    The energies are G and tau G', both Gamma(d/2), and E = (G - tau G') (1 - 1/tau). By the trapezium rule in log G,
    where the density is smooth and falls off doubly exponentially.
    """
    a = dim / 2
    log_g = special.digamma(a) + math.sqrt(special.polygamma(1, a)) * np.linspace(-14, 9, NODES)
    weight = np.exp(a * (log_g - math.log(a)) - np.exp(log_g) + a)
    weight /= weight.sum()
    g = np.exp(log_g)
    return float(weight @ special.expit((g[:, None] - tau * g) * (1 - 1 / tau)) @ weight)


def largest_dim(rate: float, tau: float) -> int:
    """Return the largest dimension in which replicas at temperatures 1 and tau exchange at this rate."""
    low, high = 1, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if swap_rate(tau, middle) >= rate else (low, middle)
    return low


@cache
def ratio_for(rate: float, dim: int) -> float:
    """Return the ratio tau of two temperatures at which replicas exchange at this rate; by bisection."""
    low, high = 0.0, math.log(100.0)
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if swap_rate(math.exp(middle), dim) > rate else (low, middle)
    return math.exp(low)


def count(config: Mapping[str, Any], dim: int) -> float:
    """Return how many steps of the ladder lead from temperature 1 to the hottest; not rounded."""
    return math.log(config["hottest"]) / math.log(ratio_for(config["swap_rate"], dim))


def metrics(run: Run) -> Metrics:
    """Return the exponent of the number of replicas in d."""
    config = run.config
    counts = [count(config, d) for d in config["dims"]]
    return {"replicas.slope": log_slope(config["dims"], counts)}


def table(run: Run) -> pd.DataFrame:
    """Ratios of temperatures for a swap rate of 0.3 (Appendix F), two harmonic replicas in equilibrium."""
    config = run.config
    rows = {
        f"d = {d:,}": {
            "tau": ratio_for(config["swap_rate"], d),
            "steps to T = 10": count(config, d),
            "over sqrt(d)": count(config, d) / math.sqrt(d),
            "rate, tau = 1.5": _seen(swap_rate(1.5, d)),
            "rate, tau = 1.2": _seen(swap_rate(1.2, d)),
        }
        for d in (2, 10, *config["dims"], 89_802)
    }
    return by_rows(rows)


def _seen(rate: float) -> float:
    return rate if rate > 1e-6 else 0.0  # the quadrature does not reach so far into the tails


def figure(run: Run) -> Figure:
    """Steps of a ladder from temperature 1 to 10 at a swap rate of 0.3, and swap rates of the paper's two ratios."""
    config, dims = run.config, np.array(run.config["dims"])
    figure, (left, right) = panels(2, size=(4.0, 3.0), share="", xscale="log", xlabel="dimension d")
    counts = [count(config, int(d)) for d in dims]
    left.plot(dims, counts, "o", color=COLOURS[0], markersize=4)
    left.plot(dims, counts[-1] * np.sqrt(dims / dims[-1]), "--", color="black", linewidth=0.9)
    left.annotate(r"$\propto \sqrt{d}$", (0.5, 0.4), xycoords="axes fraction")
    left.set(yscale="log", ylabel="steps of the ladder")
    sizes = np.unique(np.geomspace(2, 2000, 40).astype(int))
    lines(right, sizes, {rf"$\tau = {tau}$": [swap_rate(tau, int(d)) for d in sizes] for tau in (1.2, 1.5)})
    right.set(ylim=(0, 0.5), ylabel="swap rate")
    right.legend()
    return finished(figure)
