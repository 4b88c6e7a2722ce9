"""The compensation density of Luo et al. (2020): Figure 1, Theorem 2, equation 18 and Appendix B."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from scipy import optimize, special

from mhrun.errors import Refusal
from mhrun.random import Draws, Purpose, Streams, derive_key
from mhrun.report.metrics import Metrics, MetricTable
from mhrun.report.vocabulary import Array, Estimate, Run, by_rows
from mhrun.rules.correction import Correction, Quantiles, convolved_cdf, correction, inverse, series_quantiles
from mhrun.rules.series import Series, derivative, series, truncated

from . import replicas, sampling

PRINTED = tuple(map(Fraction, ("0", "0.895", "-0.145", "-2.1", "2.55", "-1.8", "0.6")))  # of g^0, g^1, ...
AT = np.linspace(-14, 14, 2801)
LOGISTIC = special.expit(AT)
PARTS = 100_000  # draws at once


def readings(config: Mapping[str, Any]) -> dict[str, Series]:
    """Return the density as printed and in the limit of infinite bandwidth."""
    variance, terms = config["variance"], config["terms"]
    return {"printed": series(variance, config["lam"], terms), "infinite": series(variance, math.inf, terms)}


# --- Figure 1 ------------------------------------------------------------------------------------------------


def log_quotient(w: Array, variance: float) -> Array:
    """Return the log of the logistic variable's spectrum over the normal one's at frequencies w > 0 (eq. 13)."""
    x = np.pi * w
    log_ratio: Array = np.log(2 * x) - x - np.log1p(-np.exp(-2 * x)) + variance * w**2 / 2
    return log_ratio


def turning_point(variance: float) -> float:
    """Return the frequency at which the quotient is smallest: 1/w - pi coth(pi w) + sigma^2 w = 0."""
    return float(
        optimize.brentq(lambda w: 1 / w - np.pi / np.tanh(np.pi * w) + variance * w, 2.0, 10 / variance)
    )


def passes_one(variance: float) -> float:
    """Return the frequency beyond which the quotient is above 1."""
    turns = turning_point(variance)
    return float(optimize.brentq(lambda w: float(log_quotient(w, variance)), turns, 4 * turns))


def beyond(config: Mapping[str, Any]) -> float:
    """Return the largest value of kernel times quotient beyond the frequency 6."""
    w = np.linspace(6, 60, 20_000)
    return float(np.exp(log_quotient(w, config["variance"]) - w**4 / config["lam"] ** 2).max())


def reconstructed(found: Series, variance: float, z: Array) -> Array:
    """Return the density of N(0, variance) + X_corr at z (n,)."""
    steps = np.linspace(-9, 9, 361)
    share = np.exp(-0.5 * steps**2)
    return found.density(z[:, None] - math.sqrt(variance) * steps) @ (share / share.sum())


# --- Theorem 2 -----------------------------------------------------------------------------------------------


def error(found: Series, variance: float) -> float:
    """Return the largest distance of the acceptance from Barker's, over log-ratios; by quadrature."""
    return float(np.abs(found.convolved_cdf(AT, variance) - LOGISTIC).max())


def solved_error(found: Correction) -> float:
    """Return the same for masses on a grid, as they are drawn: made to sum to 1."""
    return float(np.abs(convolved_cdf(found.normalised(), AT, found.sigma) - LOGISTIC).max())


def worst(found: Series, variance: float) -> float:
    """Return the positive log-ratio at which the acceptance is farthest from Barker's."""
    positive = AT >= 0
    gap = np.abs(found.convolved_cdf(AT, variance) - LOGISTIC)
    return float(AT[positive][gap[positive].argmax()])


def accepted(table: Quantiles, variance: float, delta: Array, draws: int) -> Array:
    """Return the share of accepted exchanges at log-ratios delta (L,), by the draws of the rule.

    The same z_C + z_N for each: they are as if log-ratios were estimated with a variance that is all of sigma*^2.
    """
    key, counts = derive_key(0, "compensation"), np.zeros(len(delta))
    streams = Streams(key, min(PARTS, draws))
    parts = -(-draws // PARTS)
    for part in range(1, parts + 1):
        at = Draws(streams, part)
        noise = math.sqrt(variance) * at.normal(Purpose.ACCEPT, 1)[:, 0].double()
        total = np.sort((noise + inverse(at.uniform(Purpose.ACCEPT, use=1), table)).numpy())
        counts += len(total) - np.searchsorted(total, -delta, side="right")
    return counts / (parts * min(PARTS, draws))


def _share(p: float, draws: int) -> float:
    return math.sqrt(p * (1 - p) / draws)


GAPS = np.linspace(-6, 6, 25)


def simulated(run: Run) -> dict[str, Array]:
    """Return acceptance less Barker's for each reading: at the log-ratios `GAPS`, and last at its worst."""
    config, differences = run.config, {}
    for name, reading in readings(config).items():
        lam = config["lam"] if name == "printed" else None
        table = series_quantiles(config["variance"], lam, config["terms"])
        delta = np.append(GAPS, worst(reading, config["variance"]))
        share = accepted(table, config["variance"], delta, config["draws"])
        differences[name] = share - special.expit(delta)
    return differences


# --- Metrics and tables ------------------------------------------------------------------------------------


def hermite(order: int) -> list[Fraction]:
    """Return H_n as coefficients in u, by H_{n+1} = 2 u H_n - 2 n H_{n-1}."""
    previous, current = [Fraction(0)], [Fraction(1)]
    for n in range(order):
        following = [Fraction(0), *(2 * c for c in current)]
        for k, c in enumerate(previous):
            following[k] -= 2 * n * c
        previous, current = current, following
    return current


def worpitzky(order: int) -> list[int]:
    """Return the coefficients of g^(order) in g from Worpitzky's triangle: (-1)^(k+1) (k-1)! S(order + 1, k)."""
    sums = [
        sum((-1) ** j * math.comb(k, j) * (k - j) ** (order + 1) for j in range(k + 1)) // k
        for k in range(1, order + 2)
    ]
    return [0, *((-1) ** k * part for k, part in enumerate(sums))]


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims."""
    config = run.config
    variance, drawn, by_name = config["variance"], run.cached(simulated), readings(config)
    table = MetricTable()
    table.add(
        "spectrum",
        {
            "turns": turning_point(variance),
            "turns_twice": turning_point(2 * variance),
            "passes_one": passes_one(variance),
            "beyond": beyond(config),
        },
    )
    table["hermite.wrong"] = _differing([hermite(n) for n in range(3)], [[1], [0, 2], [-2, 0, 4]])
    table["derivatives.wrong"] = _differing(
        *([function(n) for n in (1, 3, 5)] for function in (derivative, worpitzky))
    )
    for name, reading in by_name.items():
        lam = config["lam"] if name == "printed" else math.inf
        table.add(name, _of_reading(config, reading, lam, drawn[name][-1]))
    table["printed.wrong"] = _differing([by_name["printed"].in_g()], [PRINTED])
    by_bandwidth = [
        error(truncated(variance, lam, config["terms"]), variance) for lam in config["bandwidths"]
    ]
    table["bandwidths.rises"] = float(np.sum(np.diff(by_bandwidth) >= 0))
    times = run.cached(sampling.times)
    table["sampling.faster"] = times["cells: binary search"].each / times["series: rejection"].each
    return table | replicas.metrics(run)


def _of_reading(config: Mapping[str, Any], reading: Series, lam: float, drawn: float) -> Metrics:
    variance, logistic = config["variance"], LOGISTIC * (1 - LOGISTIC)
    (least, most), at = reading.range(), worst(reading, variance)
    side = np.sign(special.expit(-at) - reading.convolved_cdf(-at, variance)[0])
    eight, three = (error(truncated(variance, lam, n), variance) for n in (8, 3))
    return {
        "error": error(reading, variance),
        "density_error": float(np.abs(reconstructed(reading, variance, AT) - logistic).max()),
        "worst_at": at,
        "drawn": Estimate(float(side * drawn), _share(float(special.expit(at)), config["draws"])),
        "mass": _mass(reading),
        "least": least,
        "most": most,
        "eight_to_three": eight / three,
    }


def _mass(reading: Series) -> float:
    """Return the integral over the line, exactly: that of the density over g (1 - g) on (0, 1)."""
    # The integral of s^k is k!^2 / (2k+1)!.
    beta = (Fraction(math.factorial(k) ** 2, math.factorial(2 * k + 1)) for k in range(len(reading.ratio)))
    return float(sum((c * b for c, b in zip(reading.ratio, beta, strict=True)), Fraction(0)))


def _differing(ours: list[Any], theirs: list[Any]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return float(sum(a != b for one, other in pairs for a, b in zip(one, other, strict=True)))


def polynomials(run: Run) -> pd.DataFrame:
    """Polynomials in the logistic function g: equation 18 and Appendix B, in exact arithmetic."""
    config = run.config
    by_name = readings(config)
    cumulative = [Fraction(0)] * (2 * config["terms"] + 1)
    for n, c in enumerate(by_name["printed"].coefficients):
        for k, d in enumerate(derivative(2 * n)):
            cumulative[k] += c * d
    rows: dict[str, Any] = {
        "density (18), printed": PRINTED,
        "density (18), here": by_name["printed"].in_g(),
        "infinite bandwidth": by_name["infinite"].in_g(),
        "distribution function of (18)": cumulative,
        "g'": derivative(1),
        "g'''": derivative(3),
        "g^(5)": derivative(5),
    }
    width = max(len(row) for row in rows.values())
    filled = {name: [float(c) for c in (*row, *[Fraction(0)] * width)][1:width] for name, row in rows.items()}
    return pd.DataFrame.from_dict(filled, orient="index", columns=[f"g^{k}" for k in range(1, width)])


def distances(run: Run) -> pd.DataFrame:
    """The largest distance of the acceptance from Barker's probability, by terms, bandwidth and sigma*^2."""
    config, rows = run.config, {}
    for variance in config["variances"]:
        sd = math.sqrt(variance)
        tables = {
            "clipped cells": solved_error(correction("paper", sd, None, config["half_width"])),
            "not negative": solved_error(correction("nnls", sd)),
        }
        for lam in config["bandwidths"]:
            row = {}
            for n in (*range(1, config["most"] + 1), 8):
                try:
                    row[str(n)] = error(series(variance, lam, n), variance)
                except Refusal:
                    row[str(n)] = float("nan")
            name = "inf" if math.isinf(lam) else f"{lam:g}"
            rows[f"sigma^2 = {variance:g}, lambda = {name}"] = row | tables
    return by_rows(rows)


def theorem2(run: Run) -> pd.DataFrame:
    """The acceptance of a noise-aware exchange less Barker's (Theorem 2), by quadrature and by the rule's draws."""
    config, drawn, rows = run.config, run.cached(simulated), {}
    for delta in (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0):
        i = int(np.abs(GAPS - delta).argmin())
        row: dict[str, Estimate | float] = {"Barker": float(special.expit(delta))}
        for name, reading in readings(config).items():
            exact = special.expit(-delta) - reading.convolved_cdf(-delta, config["variance"])[0]
            row[f"{name}, quadrature"] = 1e4 * float(exact)
            se = _share(float(special.expit(delta)), config["draws"])
            row[f"{name}, drawn"] = Estimate(1e4 * float(drawn[name][i]), 1e4 * se)
        rows[f"log-ratio {delta:g}"] = row
    return by_rows(rows)
