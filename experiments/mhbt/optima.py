"""Theorems 1 and 2 of Wu, Wang & Wong (2020), illustrated: optima and divergence of MHBT's distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import logsumexp

from mhrun.report.metrics import Metrics, value
from mhrun.report.plots import finished, panels
from mhrun.report.vocabulary import COLOURS, Array, Figure, Run, by_rows, cached, log_slope

from .gaussian import variance_ratio

# x ~ 2/3 N(theta, 1) + 1/3 N(-theta, 1), theta = 2: a global optimum near 2 and a local one near -2.
SHARE, TRUE = 2 / 3, 2.0
GRID = np.linspace(-4.0, 4.0, 801)
DELTA = 3.0  # over sqrt(c): delta_n = sqrt(3 margin / (Q_0 c))
REMARK = 0.45  # c_n = m^0.45, "close to but smaller than sqrt(m)", in Remark 1
_CHUNK = 1000  # minibatches at once


class LogDensities(NamedTuple):
    """Log densities on the grid, up to a constant."""

    tempered: Array  # c times the mean log-likelihood of all data
    stationary: Array  # log of the average over minibatches of exp(c times their mean log-likelihood)


def log_lik(theta: Array, x: Array) -> Array:
    """Return log p(x | theta) without its constant, (n, P) for x (n,) and theta (P,)."""
    near, far = -0.5 * np.square(x[:, None] - theta), -0.5 * np.square(x[:, None] + theta)
    return np.logaddexp(math.log(SHARE) + near, math.log(1 - SHARE) + far)


def sample(n: int, seed: int) -> Array:
    """Return data (n,)."""
    rng = np.random.default_rng(seed)
    return TRUE * np.where(rng.random(n) < SHARE, 1, -1) + rng.standard_normal(n)


def batch_means(values: Array, m: int, batches: int, seed: int) -> Array:
    """Return the means of values (n, P) over minibatches without replacement, (batches, P)."""
    rng, n = np.random.default_rng(seed), len(values)
    means = []
    for start in range(0, batches, _CHUNK):
        weights = np.zeros((min(_CHUNK, batches - start), n), np.float32)
        for row in weights:
            row[rng.choice(n, m, replace=False, shuffle=False)] = 1 / m
        means.append(weights @ values.astype(np.float32))
    return np.concatenate(means).astype(float)


def log_densities(values: Array, means: Array, c: float) -> LogDensities:
    """Return the two log densities at c from log-likelihoods (n, P) and means over minibatches (batches, P)."""
    # About the mean over all data, so that nothing overflows and little is lost.
    mean = values.mean(axis=0)
    return LogDensities(c * mean, c * mean + logsumexp(c * (means - mean), axis=0) - math.log(len(means)))


def population() -> Array:
    """Return the expected log-likelihood on the grid, by quadrature over x."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    by_sign = [log_lik(GRID, sign * TRUE + nodes) for sign in (1, -1)]
    mean: Array = SHARE * weights @ by_sign[0] + (1 - SHARE) * weights @ by_sign[1]
    return mean


def population_optima() -> list[float]:
    """Return the optima of the expected log-likelihood."""
    mean = population()
    inner = (mean[1:-1] > mean[:-2]) & (mean[1:-1] > mean[2:])
    return [float(theta) for theta in GRID[1:-1][inner]]


def basin(optimum: float) -> npt.NDArray[np.bool_]:
    """Return which points of the grid are on the optimum's side of 0."""
    return np.sign(GRID) == np.sign(optimum)


def margin(log_density: Array, optimum: float, delta: float) -> float:
    """Return by how much the best point within delta is above the best of the rest of the optimum's basin."""
    distance = np.abs(GRID - optimum)
    ball, rest = basin(optimum) & (distance <= delta), basin(optimum) & (distance > delta)
    return float(log_density[ball].max() - log_density[rest].max()) if rest.any() else float("nan")


def margin_over_printed(log_density: Array, optimum: float, delta: float) -> float:
    """Return the margin of an optimum over that of equation 4, log 1/(1 - 2t): the least over the radius delta_0.

    At delta_n = DELTA / sqrt(c) the latter is DELTA^2 Q_0 / 3. Q_0 is the largest number for which
    mu(optimum) - mu(theta) >= Q_0 (theta - optimum)^2 at all theta within delta_0 (Theorem 1; Assumption 3).
    """
    mean, at = population(), int(np.abs(GRID - optimum).argmin())
    # The optimum between points of the grid, by the parabola through three of them: drops near it are small.
    left, middle, right = mean[at - 1 : at + 2]
    offset = 0.5 * (left - right) / (left - 2 * middle + right)
    distance = np.abs(GRID - GRID[at] - offset * (GRID[1] - GRID[0]))
    apart = np.flatnonzero(basin(optimum) & (np.arange(len(GRID)) != at))
    apart = apart[distance[apart].argsort()]
    drop = middle - 0.25 * (left - right) * offset - mean[apart]
    curvature = np.minimum.accumulate(drop / distance[apart] ** 2)
    outside = distance[apart] > delta
    highest = np.maximum.accumulate(log_density[apart[outside]])
    top = log_density[basin(optimum) & (distance <= delta)].max()
    ratios = (top - highest) / (DELTA**2 / 3 * curvature[outside])
    return float(ratios.min()) if len(ratios) else float("nan")


def divergence(densities_of: LogDensities) -> float:
    """Return the Kullback-Leibler divergence of the stationary distribution from the tempered density, on the grid."""
    p, q = (values - logsumexp(values) for values in densities_of)
    return float(np.exp(p) @ (p - q))


def gaussian_divergence(c: float, m: int, n: int) -> float:
    """Return the same for the mean of a Gaussian with D = 2 in closed form, about D (c/m)^2 / 4."""
    ratio = variance_ratio(c, m, n)
    return 1 / ratio - 1 + math.log(ratio)


@cached
def computed(run: Run) -> Mapping[tuple[int, float], LogDensities]:
    """Return the distributions of each data set at each c, (trial, c) -> distributions."""
    config = run.config
    by_case: dict[tuple[int, float], LogDensities] = {}
    first = config["seed"] * config["trials"]
    for trial in range(config["trials"]):
        values = log_lik(GRID, sample(config["n"], first + trial))
        means = batch_means(values, config["m"], config["batches"], first + trial)
        by_case |= {(trial, c): log_densities(values, means, c) for c in config["temperatures"]}
    return by_case


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    config = run.config
    numbers: Metrics = {}
    shifts, margins, ratios = [], [], []
    for (_trial, c), densities_of in computed(run).items():
        delta = DELTA / math.sqrt(c)
        for optimum in population_optima():
            best = GRID[basin(optimum)][densities_of.stationary[basin(optimum)].argmax()]
            shifts.append(abs(best - optimum) / delta)
            margins.append(margin(densities_of.stationary, optimum, delta))
            ratios.append(margin_over_printed(densities_of.stationary, optimum, delta))
    numbers["optima.count"] = float(len(population_optima()))
    numbers["optima.worst"] = float(max(shifts))
    numbers["optima.margin"] = float(np.nanmin(margins))
    numbers["optima.margin_over_printed"] = float(np.nanmin(ratios))
    numbers |= _of_sizes(config)
    return numbers


def _of_sizes(config: Mapping[str, Any]) -> Metrics:
    sizes, c, n, first = config["sizes"], config["c"], config["n"], config["seed"] * config["trials"]
    values = log_lik(GRID, sample(n, first))
    means = {m: batch_means(values, m, config["batches"], first + 1) for m in sizes}
    kl = [divergence(log_densities(values, means[m], c)) for m in sizes]
    closed = [gaussian_divergence(c, m, n) for m in sizes]
    growing = [divergence(log_densities(values, means[m], m**REMARK)) for m in sizes]
    in_closed_form = [gaussian_divergence(m**REMARK, m, n) for m in sizes]
    by_name = {"kl_remark": growing, "kl_remark_gaussian": in_closed_form, "kl": kl, "kl_gaussian": closed}
    numbers: Metrics = {
        f"{name}.{m}": number
        for name, column in by_name.items()
        for m, number in zip(sizes, column, strict=True)
    }
    for name in ("kl", "kl_gaussian", "kl_remark", "kl_remark_gaussian"):
        series = by_name[name]
        numbers[f"{name}.falls"] = float(np.count_nonzero(np.diff(series) < 0))
        numbers[f"{name}.slope"] = log_slope(sizes, series)
    return numbers


def optima(run: Run) -> pd.DataFrame:
    """Optima of MHBT's stationary distribution (Theorem 1)."""
    config, rows = run.config, {}
    for c in config["temperatures"]:
        delta = DELTA / math.sqrt(c)
        densities_of = [case.stationary for (_trial, at), case in computed(run).items() if at == c]
        row: dict[str, float] = {}
        for name, optimum in zip(("local", "global"), population_optima(), strict=True):
            side = basin(optimum)
            row[f"{name}: moved by"] = max(abs(GRID[side][d[side].argmax()] - optimum) for d in densities_of)
            row[f"{name}: drop"] = min(margin(d, optimum, delta) for d in densities_of)
        rows[f"c = {c:g}"] = row | {"delta": delta, "condition": c**2 * math.log(c) / config["m"]}
    return by_rows(rows)


def divergences(run: Run) -> pd.DataFrame:
    """Divergence of MHBT's stationary distribution from the tempered posterior (Theorem 2)."""
    config, numbers = run.config, run.cached(metrics)
    rows = {
        f"m = {m:,}": {
            "mixture": numbers[f"kl.{m}"],
            "Gaussian, d = 2": numbers[f"kl_gaussian.{m}"],
            "d (c/m)^2 / 4": 0.5 * (config["c"] / m) ** 2,
        }
        for m in config["sizes"]
    }
    return by_rows(rows)


def remark(run: Run) -> pd.DataFrame:
    """Divergence where the temperature falls with m: c_n = m^0.45 (Remark 1, part 2)."""
    config, numbers = run.config, run.cached(metrics)
    rows = {
        f"m = {m:,}": {
            "c": m**REMARK,
            "temperature": config["n"] / m**REMARK,
            "mixture": numbers[f"kl_remark.{m}"],
            "Gaussian, d = 2": numbers[f"kl_remark_gaussian.{m}"],
            "condition": m ** (2 * REMARK) * math.log(m**REMARK) / m,
        }
        for m in config["sizes"]
    }
    return by_rows(rows)


def densities(run: Run) -> Figure:
    """MHBT's stationary distribution and the tempered posterior in one dimension (Theorem 1)."""
    temperatures = run.config["temperatures"]
    figure, axes = panels(len(temperatures), size=(2.6, 2.8), share="x", xlabel=r"$\theta$", xlim=(-4, 4))
    for axis, c in zip(axes, temperatures, strict=True):
        densities_of, delta = computed(run)[0, c], DELTA / math.sqrt(c)
        for optimum in population_optima():
            axis.axvspan(optimum - delta, optimum + delta, color="0.92", linewidth=0)
            axis.axvline(optimum, color="black", linewidth=0.6, linestyle="--")
        lines = (("--", COLOURS[6], "tempered posterior"), ("-", COLOURS[0], "MHBT"))
        for values, (line, colour, name) in zip(densities_of, lines, strict=True):
            axis.plot(GRID, values - values.max(), line, color=colour, linewidth=1.2, label=name)
        axis.set(title=f"c = {c:g}", ylim=(-1.6 * c, 0.08 * c))
    axes[0].set_ylabel("log density")
    return finished(figure, legend="right")


def divergence_figure(run: Run) -> Figure:
    """Divergence of MHBT's stationary distribution from the tempered posterior against m, at c = 20 (Theorem 2)."""
    sizes, numbers = np.array(run.config["sizes"]), run.cached(metrics)
    figure, (axis,) = panels(
        1, size=(4.8, 3.2), xscale="log", yscale="log", xlabel="m", ylabel="Kullback-Leibler divergence"
    )
    for key, name, mark in (("kl", "mixture", "o"), ("kl_gaussian", "Gaussian, d = 2", "-")):
        values = [value(numbers[f"{key}.{m}"]) for m in sizes]
        axis.plot(sizes, values, mark, color=COLOURS[0 if key == "kl" else 1], markersize=5, label=name)
    axis.plot(sizes, 0.5 * (run.config["c"] / sizes) ** 2, ":", color="grey", label=r"$d (c/m)^2 / 4$")
    axis.legend()
    return finished(figure)
