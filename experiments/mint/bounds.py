"""Theorems 1 and 2 of Li & Wong (2017), computed without chains: MINT's kernel and stationary distribution on a grid.

Data y_i = +1 or -1 with log p(y | theta) = -log(1 + exp(-y theta)). A minibatch matters only by how many of its data
are +1, which is hypergeometric: every expectation over minibatches is an exact sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from mhrun.report.metrics import Metrics, value
from mhrun.report.plots import finished, panels
from mhrun.report.vocabulary import COLOURS, Array, Figure, Run, Style, by_rows, cached, log_slope

_TAIL = 1e-13  # of the hypergeometric distribution, left out on each side


class Cell(NamedTuple):
    """What one minibatch size and one alpha give."""

    kernel: float  # sup over theta of TV(K_T(theta, .), K_mint(theta, .)): epsilon
    bound: float  # 2 / sqrt(m) + 6 e M sqrt((1 - f_m) log m) / m^(1/2 - alpha), the end of the proof of Theorem 1
    eta: float  # 1 - sup over theta, theta' of TV(K_T(theta, .), K_T(theta', .)): Assumption 1
    stationary: float  # TV(pi_T, pi_mint)

    @property
    def ratio(self) -> float:
        """Epsilon over eta, Theorem 2's bound."""
        return self.kernel / self.eta

    @property
    def condition(self) -> str:
        """Whether the condition of Theorem 2 holds in this cell: epsilon <= eta / 2."""
        return "holds" if self.kernel <= self.eta / 2 else "fails"


def log_lik(theta: Array) -> tuple[Array, Array]:
    """Return log p(y | theta) of y = +1 and of y = -1, each (P,) for theta (P,)."""
    return -np.logaddexp(0, -theta), -np.logaddexp(0, theta)


def acceptance(theta: Array, m: int, n: int, c: float, ones: int) -> Array:
    """Return E min(1, exp(c (muhat(theta') - muhat(theta)))) over minibatches of m of n data, (P, P) [from, to].

    `ones` of the n data are +1. With m = n it is the acceptance of the tempered chain.
    """
    plus, minus = log_lik(theta)
    up, down = plus[None] - plus[:, None], minus[None] - minus[:, None]
    density = stats.hypergeom(n, ones, m)
    low, high = (int(density.ppf(q)) for q in (_TAIL, 1 - _TAIL))
    counts = np.arange(low, high + 1)
    total = np.zeros_like(up)
    for share, weight in zip(counts / m, density.pmf(counts), strict=True):
        total += weight * np.exp(np.minimum(0.0, c * (share * up + (1 - share) * down)))
    return total


def kernel(accepted: Array) -> Array:
    """Return the transition matrix of a chain whose proposals are uniform on the grid, (P, P)."""
    moves = accepted / len(accepted)
    np.fill_diagonal(moves, 0.0)
    return moves + np.diag(1 - moves.sum(axis=1))


def invariant(matrix: Array) -> Array:
    """Return the stationary distribution of a transition matrix, (P,)."""
    size = len(matrix)
    system = np.vstack([matrix.T - np.eye(size), np.ones(size)])
    distribution: Array = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]
    return distribution


def distance(one: Array, other: Array) -> Array:
    """Return the total variation distance along the last axis."""
    return np.asarray(0.5 * np.abs(one - other).sum(axis=-1))


def cell(theta: Array, m: int, n: int, alpha: float, ones: int) -> Cell:
    """Return both sides of Theorems 1 and 2 at c = m^alpha."""
    c = float(m) ** alpha
    tempered = kernel(acceptance(theta, n, n, c, ones))
    mint = kernel(acceptance(theta, m, n, c, ones))
    largest = max(float(np.ptp(values)) for values in log_lik(theta))  # M
    spread = math.sqrt((1 - (m - 1) / n) * math.log(m)) / m ** (0.5 - alpha)
    return Cell(
        float(distance(tempered, mint).max()),
        2 / math.sqrt(m) + 6 * math.e * largest * spread,
        1 - float(max(distance(row, tempered).max() for row in tempered)),
        float(distance(invariant(tempered), invariant(mint))),
    )


@cached
def computed(run: Run) -> dict[tuple[float, int], Cell]:
    """Return the cells of a run, (alpha, m) -> cell."""
    config = run.config
    theta = np.linspace(-config["half"], config["half"], int(config["points"]))
    n = int(config["n"])
    ones = round(config["share"] * n)
    return {
        (float(alpha), int(m)): cell(theta, int(m), n, float(alpha), ones)
        for alpha in config["alphas"]
        for m in config["sizes"]
    }


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables.

    ``kernel.slope_A``: the exponent of m in the kernels' distance at alpha = A, ``kernel.bound_A`` of the bound's
    shape; ``kernel.excess``: the largest difference of the two; ``kernel.over_bound``: the largest distance over the
    bound that the proof ends with. ``stationary.cells``: cells in which epsilon <= eta / 2; ``stationary.over``: the
    largest TV(pi_T, pi_mint) over epsilon / eta in those, NaN if there is none.
    """
    cells, sizes = computed(run), [int(m) for m in run.config["sizes"]]
    numbers: Metrics = {}
    n = int(run.config["n"])
    excess = []
    for alpha in map(float, run.config["alphas"]):
        shape = [math.sqrt((1 - (m - 1) / n) * math.log(m)) / m ** (0.5 - alpha) for m in sizes]
        slope = log_slope(sizes, [cells[alpha, m].kernel for m in sizes])
        numbers |= {f"kernel.slope_{alpha:g}": slope, f"kernel.bound_{alpha:g}": log_slope(sizes, shape)}
        excess.append(slope - log_slope(sizes, shape))
    numbers["kernel.excess"] = max(excess)
    numbers["kernel.over_bound"] = max(entry.kernel / entry.bound for entry in cells.values())
    ratios = {key: entry.stationary * entry.eta / entry.kernel for key, entry in cells.items()}
    within = [ratio for key, ratio in ratios.items() if cells[key].condition == "holds"]
    numbers["stationary.cells"] = float(len(within))
    numbers["stationary.over"] = max(within, default=math.nan)
    numbers["stationary.over_all"] = max(ratios.values())
    return numbers


def kernels(run: Run) -> pd.DataFrame:
    """Distance of MINT's kernel from that of tempered MCMC (Theorem 1), by alpha and m."""
    numbers, rows = run.cached(metrics), {}
    for alpha in map(float, run.config["alphas"]):
        row = {f"m = {m:,}": computed(run)[alpha, m].kernel for m in run.config["sizes"]}
        row |= {
            "exponent": value(numbers[f"kernel.slope_{alpha:g}"]),
            "of the bound": value(numbers[f"kernel.bound_{alpha:g}"]),
        }
        rows[f"alpha = {alpha:g}"] = row
    return by_rows(rows)


def bounds(run: Run) -> Figure:
    """MINT against tempered MCMC by minibatch size: kernels (Theorem 1) and stationary distributions (Theorem 2)."""
    sizes, n = np.array(run.config["sizes"], dtype=float), int(run.config["n"])
    panel_style: Style = {"xscale": "log", "yscale": "log", "xlabel": "minibatch size m"}
    figure, (left, right) = panels(2, size=(4.5, 3.4), share="", **panel_style)
    for alpha, colour, mark in zip(map(float, run.config["alphas"]), COLOURS, "os^D", strict=False):
        cells = [computed(run)[alpha, int(m)] for m in sizes]
        style: Style = {"color": colour, "markersize": 4}
        shape = np.sqrt((1 - (sizes - 1) / n) * np.log(sizes)) / sizes ** (0.5 - alpha)
        left.plot(
            sizes, [entry.kernel for entry in cells], mark + "-", label=rf"$\alpha$ = {alpha:g}", **style
        )
        left.plot(sizes, cells[0].kernel * shape / shape[0], "--", color=colour, linewidth=0.9)
        right.plot(sizes, [entry.stationary for entry in cells], mark + "-", **style)
        right.plot(sizes, [entry.ratio for entry in cells], "--", color=colour, linewidth=0.9)
    left.set_ylabel("distance of kernels (TV)")
    right.set_ylabel("stationary distributions (TV)")
    return finished(figure, legend="right")
