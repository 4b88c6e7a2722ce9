"""Proposition 1 of Wu, Wang & Wong (2020): the proposal ratio of forward and backward moves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pandas as pd
import torch

from mhrun.proposals.reversible_langevin import ReversibleLangevinProposal
from mhrun.report.metrics import Metrics, value
from mhrun.report.plots import THIN, finished, levels, panels
from mhrun.report.vocabulary import COLOURS, Array, Estimate, Figure, Run, Style, by_rows, log_slope
from mhrun.types import Controls, Evaluation
from mhrun.units import step_from_learning_rate

DENSITIES = ("normalised", "unnormalised")
STRONG = 1e-4  # the learning rate where the gradient is strong
BIN = 0.04  # the width of a histogram's bins
FLAT = 0.01  # times 1/d: the learning rate where it vanishes
MOST = 0.99  # of the moves: with high probability
MISMATCHES = np.linspace(0.0, 4.0, 17)  # |g_J - g_I| n sqrt(eps / 2), in sqrt(d)


def moves(
    draws: int,
    dim: int,
    beta: float,
    density: str,
    *,
    n: int,
    eps: float,
    grad: float,
    forward: bool,
    curvature: float = 0.0,
    mismatch: float = 0.0,
    seed: int,
) -> Array:
    """Return log q_J(theta' -> theta) - log q_I(theta -> theta') after moves in one direction, (draws,).

    By the proposal itself, with the printed noise sqrt(2 eps)/n.

    Args:
        draws: how many moves.
        dim: d.
        beta: how much wider backward moves are.
        density: see `ReversibleLangevin`.
        n: of the noise.
        eps: the learning rate, on the mean log-likelihood.
        grad: |g_I(theta)|, the length of its gradient on the minibatch; it points along the diagonal.
        forward: the direction.
        curvature: of the log-likelihood: g(theta') = g(theta) - curvature (theta' - theta).
        mismatch: |g_J - g_I| at one point, at right angles to g_I.
        seed: of the noise; the same moves for each setting.
    """
    z = np.random.default_rng(seed).standard_normal((draws, dim))
    sd = math.sqrt(2 * eps) / n
    origin_gradient = np.full(dim, grad / math.sqrt(dim))
    across = np.zeros(dim)
    across[: 2 * (dim // 2) : 2], across[1 : 2 * (dim // 2) : 2] = 1, -1  # no part along the diagonal
    across *= mismatch / max(float(np.linalg.norm(across)), 1.0)
    moved = eps * origin_gradient + sd * z if forward else -eps * origin_gradient + beta * sd * z
    ones = torch.ones(draws, dtype=torch.float64)
    controls = Controls(step_from_learning_rate(eps, n) * ones, ones, ones / n)

    def point(theta: Array, gradient: Array) -> Evaluation:
        full = torch.from_numpy(np.broadcast_to(n * gradient, (draws, dim)).copy())
        return Evaluation(torch.from_numpy(theta), torch.zeros(draws), grad=full)

    origin = point(np.zeros((draws, dim)), origin_gradient)
    candidate = point(moved, origin_gradient + across - curvature * moved)
    proposal = ReversibleLangevinProposal(beta, cast(Any, density))
    log_back = proposal.log_density(candidate, origin.theta, controls)
    log_out = proposal.log_density(origin, candidate.theta, controls)
    return (log_back - log_out).numpy()


def derived(beta: float, density: str, *, forward: bool) -> float:
    """Return the log of the proposal ratio over d where the gradient is strong, by algebra.

    Forward: 1/2 - 1/(2 beta^2), less log beta if the density is normalised. Backward: the other part of the mixture
    has made the move and undoes it, (1 - beta^2)/2, and log beta more.
    """
    factor = math.log(beta) if density == "normalised" else 0.0
    return 0.5 - 0.5 / beta**2 - factor if forward else 0.5 * (1 - beta**2) + factor


def strong(config: Mapping[str, Any], dim: int, beta: float, density: str, *, forward: bool) -> Array:
    """Return log-ratios of case 1: one gradient everywhere, against which the noise is short."""
    grad = math.sqrt(dim) / (config["eta"] * config["n"] * math.sqrt(STRONG / 2))
    at: Style = {"n": config["n"], "eps": STRONG, "grad": grad, "seed": config["seed"]}
    return moves(config["draws"], dim, beta, density, forward=forward, **at)


def flat(config: Mapping[str, Any], dim: int, beta: float, density: str, *, forward: bool) -> Array:
    """Return log-ratios of case 2: at an optimum of curvature 1, with a learning rate of order 1/d."""
    at: Style = {"n": config["n"], "eps": FLAT / dim, "grad": 0.0, "curvature": 1.0, "seed": config["seed"]}
    return moves(config["draws"], dim, beta, density, forward=forward, **at)


def cases(config: Mapping[str, Any], dim: int, beta: float, density: str) -> tuple[Array, Array, Array]:
    """Return log-ratios of case 1, forward and backward, and of case 2 in both directions together."""
    ahead, back = (strong(config, dim, beta, density, forward=forward) for forward in (True, False))
    still = [flat(config, dim, beta, density, forward=forward) for forward in (True, False)]
    return ahead, back, np.concatenate(still)


def largest_rate(config: Mapping[str, Any], dim: int) -> float:
    """Return the largest learning rate at which 99 % of forward moves have a ratio above 1 (Remark 2).

    For |g|^2 = d, curvature 1 and the density without its factor; by bisection.
    """
    low, high = math.log(1e-6), 0.0
    at: Style = {"n": config["n"], "grad": math.sqrt(dim), "curvature": 1.0, "seed": config["seed"]}
    draws = min(config["draws"], 2000)
    for _ in range(40):
        middle = 0.5 * (low + high)
        log_ratios = moves(
            draws, dim, config["beta"], "unnormalised", eps=math.exp(middle), forward=True, **at
        )
        low, high = (middle, high) if (log_ratios > 0).mean() >= MOST else (low, middle)
    return math.exp(low)


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims, in the highest dimension."""
    config = run.config
    numbers: Metrics = {}
    dim, beta = max(config["dims"]), config["beta"]
    for density in DENSITIES:
        ahead, back, still = cases(config, dim, beta, density)
        numbers[f"{density}.forward"] = _mean(ahead / dim)
        numbers[f"{density}.forward_above"] = float((ahead > 0).mean())
        numbers[f"{density}.backward"] = _mean(back / dim)
        numbers[f"{density}.backward_most"] = float(np.exp(np.quantile(back, MOST)))
        numbers[f"{density}.flat_most"] = float(np.quantile(np.abs(still), MOST))
    rates = [largest_rate(config, d) for d in config["dims"]]
    numbers |= {f"unnormalised.eps_{d}": rate for d, rate in zip(config["dims"], rates, strict=True)}
    numbers["unnormalised.eps_slope"] = log_slope(config["dims"], rates)
    return numbers


def _mean(values: Array) -> Estimate:
    return Estimate(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def ratios(run: Run) -> pd.DataFrame:
    """The log of the proposal ratio (Proposition 1), beta = 2."""
    config, rows = run.config, {}
    beta = config["beta"]
    for density in DENSITIES:
        for dim in config["dims"]:
            ahead, back, still = cases(config, dim, beta, density)
            rows[f"{density}, d = {dim:,}"] = {
                "forward": _mean(ahead / dim),
                "derived": derived(beta, density, forward=True),
                "above 1": float((ahead > 0).mean()),
                "backward": _mean(back / dim),
                "derived, backward": derived(beta, density, forward=False),
                "flat": float(np.quantile(np.abs(still), MOST)),
            }
    return by_rows(rows)


def betas(run: Run) -> pd.DataFrame:
    """The same for other beta, d = 100."""
    config, rows = run.config, {}
    for beta in config["betas"]:
        row: dict[str, Estimate | float] = {}
        for density in DENSITIES:
            for name, forward in (("forward", True), ("backward", False)):
                row[f"{name}, {density}"] = _mean(strong(config, 100, beta, density, forward=forward) / 100)
                row[f"{name}, {density}, derived"] = derived(beta, density, forward=forward)
        rows[f"beta = {beta:g}"] = row
    return by_rows(rows)


def rates(run: Run) -> pd.DataFrame:
    """The largest learning rate at which 99 % of forward moves have a ratio above 1 (Remark 2)."""
    config, numbers = run.config, run.cached(metrics)
    rows = {}
    for dim in config["dims"]:
        rate = value(numbers[f"unnormalised.eps_{dim}"])
        eta = 1 / (config["n"] * math.sqrt(rate / 2))
        rows[f"d = {dim:,}"] = {
            "largest learning rate": rate,
            "eta_0 there": eta,
            "the remark's": math.sqrt(config["beta"] ** 2 - 1) / (config["n"] * math.sqrt(eta)),
            "d^(-1/4) / n": dim**-0.25 / config["n"],
        }
    return by_rows(rows)


def histograms(run: Run) -> Figure:
    """The log of the proposal ratio over d, after forward and backward moves (Proposition 1, case 1)."""
    config = run.config
    dims, beta = sorted(config["dims"]), config["beta"]
    moved = {
        (density, forward, dim): strong(config, dim, beta, density, forward=forward) / dim
        for density in DENSITIES
        for forward in (True, False)
        for dim in dims
    }
    low = math.floor(min(values.min() for values in moved.values()) / BIN)
    high = math.ceil(max(values.max() for values in moved.values()) / BIN)
    bins = [BIN * edge for edge in range(low, high + 1)]
    labels: Style = {"xlabel": "log proposal ratio / d", "yscale": "log", "xlim": (bins[0], bins[-1])}
    figure, axes = panels(2, size=(4.1, 3.0), share="x", **labels)
    colours = {True: COLOURS[0], False: COLOURS[1]}
    shades = {dim: (place + 1) / len(dims) for place, dim in enumerate(dims)}
    for axis, density in zip(axes, DENSITIES, strict=True):
        for forward, colour in colours.items():
            for dim, shade in shades.items():
                style: Style = {"color": colour, "alpha": shade}
                axis.hist(moved[density, forward, dim], bins=bins, density=True, histtype="step", **style)
            at = derived(beta, density, forward=forward)
            axis.axvline(at, color=colour, linestyle="--", linewidth=0.9)
        axis.axvline(0, **THIN)
        axis.set_title(density)
    axes[0].set_ylabel("density")
    entries: dict[str, Style] = {
        "forward": {"color": colours[True]},
        "backward": {"color": colours[False]},
        **{f"d = {dim:,}": {"color": "black", "alpha": shade} for dim, shade in shades.items()},
        "closed form": {"color": "black", "linestyle": "--", "linewidth": 0.9},
    }
    for label, style in entries.items():
        axes[-1].plot([], [], label=label, **style)
    return finished(figure, legend="right")


def mismatch(run: Run) -> Figure:
    """What becomes of the forward ratio when minibatches disagree about the gradient (Assumption 6)."""
    config = run.config
    beta, dim, n = config["beta"], 100, config["n"]
    labels: Style = {
        "xlabel": r"$|g_J - g_I|\, n \sqrt{\epsilon/2} \,/ \sqrt{d}$",
        "ylabel": "log proposal ratio / d",
    }
    figure, (axis,) = panels(1, size=(5.2, 3.2), **labels)
    grad = math.sqrt(dim) / (config["eta"] * n * math.sqrt(STRONG / 2))
    at: Style = {"n": n, "eps": STRONG, "grad": grad, "seed": config["seed"]}
    for density, colour in zip(DENSITIES, COLOURS, strict=False):
        draws = min(config["draws"], 1000)
        lengths = [x * math.sqrt(dim) / (n * math.sqrt(STRONG / 2)) for x in MISMATCHES]
        means = [
            moves(draws, dim, beta, density, forward=True, mismatch=x, **at).mean() / dim for x in lengths
        ]
        axis.plot(MISMATCHES, means, "o", color=colour, markersize=4, label=density)
        line = derived(beta, density, forward=True) - np.square(MISMATCHES) / (2 * beta**2)
        axis.plot(MISMATCHES, line, "--", color=colour, linewidth=1)
    levels(axis, 0, line="-")
    axis.legend()
    return finished(figure)
