"""TunaMH on a tempered mixture: what chi buys, and whether draws follow the posterior."""

from __future__ import annotations

import math

import numpy as np
import torch

from mhrun.report.metrics import Metrics, estimate, value
from mhrun.report.plots import panels
from mhrun.report.vocabulary import Figure, Run
from mhrun.target import Target

from ..arena.truth import by_quadrature
from ..exact.costs import metrics as costs
from ..exact.costs import ratio

SQUARE = 3  # of the functions theta_1, theta_2, theta_1^2, theta_2^2, theta_1 theta_2
EVERY = 5  # draws between two that expected minibatches are computed at
LIMIT = 1e-3  # chi below which the bound of Theorem 2 is 0 for floating point numbers


def metrics(run: Run) -> Metrics:
    """Costs; the mean of theta_2^2 and how far it is from quadrature; expected minibatches; the bound of Theorem 2."""
    numbers = costs(run)
    right = float(by_quadrature(run.target, float(run.config["temperature"])).mean[SQUARE])
    numbers["exact.square"] = right
    for method in run.methods:
        square = estimate((run.draws(method)[:, :, 1] ** 2).mean(axis=1))
        numbers[f"{method}.square"] = square
        numbers[f"{method}.square_z"] = abs(square.value - right) / square.se
    tests = tuna(run)
    scores = [value(numbers[f"{method}.square_z"]) for method in tests]
    numbers["tunamh.square_z"] = max(scores, default=math.nan)
    for method, chi in tests.items():
        numbers[f"{method}.expected"] = expected(run, method, chi)
        numbers[f"{method}.off"] = abs(
            value(numbers[f"{method}.data"]) / value(numbers[f"{method}.expected"]) - 1
        )
        if "metropolis.accept_rate" in numbers and chi >= LIMIT:
            kept_share = ratio(numbers[f"{method}.accept_rate"], numbers["metropolis.accept_rate"])
            numbers[f"{method}.kept"] = kept_share
            numbers[f"{method}.theorem2"] = kept_share.value / math.exp(
                -1 / chi - 2 * math.sqrt(math.log(2) / chi)
            )
    numbers["tunamh.off"] = max((value(numbers[f"{method}.off"]) for method in tests), default=math.nan)
    bounds = [value(numbers[f"{method}.theorem2"]) for method in tests if f"{method}.theorem2" in numbers]
    numbers["tunamh.theorem2"] = min(bounds, default=math.nan)
    return numbers


def tuna(run: Run) -> dict[str, float]:
    """Return the methods whose rule is TunaMH, and their chi."""
    rules = {method: run.config["methods"][method]["kernel"].get("rule") or {} for method in run.methods}
    return {method: float(rule["chi"]) for method, rule in rules.items() if "chi" in rule}


def expected(run: Run, method: str, chi: float) -> float:
    """Return the mean of chi B^2 + B at draws and moves of the method's proposal, B the sum of the bounds.

    Moves are drawn anew: those that were proposed are not recorded.
    """
    target: Target = run.target_of(method)
    theta = torch.from_numpy(run.draws(method)[:, ::EVERY].reshape(-1, target.dim)).double()
    step = float(run.config["step_size"])
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal(tuple(theta.shape)))
    width = target.bounded.bounds.width(theta, theta + step * noise)
    bound = (width * target.bounded.table.total / float(run.config["temperature"])).numpy()
    rate = chi * bound**2 + bound
    assert target.n is not None
    return float(np.where(rate > target.n, target.n, rate).mean())


def tradeoff(run: Run) -> Figure:
    """Data of a step, and acceptance, against chi."""
    numbers, tests = run.cached(metrics), tuna(run)
    chi = list(tests.values())
    figure, (left, right) = panels(2, size=(3.6, 3.2), share="", xscale="log", xlabel=r"$\chi$")
    left.plot(chi, [value(numbers[f"{method}.data"]) for method in tests], "o-", markersize=4)
    left.set(yscale="log", ylabel="data read in a step")
    right.plot(chi, [value(numbers[f"{method}.accept_rate"]) for method in tests], "o-", markersize=4)
    right.set(ylabel="acceptance rate")
    if "metropolis.accept_rate" in numbers:
        right.axhline(value(numbers["metropolis.accept_rate"]), color="black", linestyle=":", linewidth=1)
    return figure
