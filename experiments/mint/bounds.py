"""Theorems 1 and 2 of Li & Wong (2017), computed without chains: MINT's kernel and stationary distribution on a grid.

Data y_i = +1 or -1 with log p(y | theta) = -log(1 + exp(-y theta)). A minibatch matters only by how many of its data
are +1, which is hypergeometric: every expectation over minibatches is an exact sum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from scipy import stats

from mhrun.report.run import Run
from mhrun.report.style import COLOURS

from ..shared.measures import Metrics, value

Array = npt.NDArray[np.floating]

_TAIL = 1e-13  # of the hypergeometric distribution, left out on each side


class Cell(NamedTuple):
    """What one minibatch size and one alpha give."""

    kernel: float  # sup over theta of TV(K_T(theta, .), K_mint(theta, .)): epsilon
    bound: float  # 2 / sqrt(m) + 6 e M sqrt((1 - f_m) log m) / m^(1/2 - alpha), the end of the proof of Theorem 1
    eta: float  # 1 - sup over theta, theta' of TV(K_T(theta, .), K_T(theta', .)): Assumption 1
    stationary: float  # TV(pi_T, pi_mint)


def log_lik(theta: Array) -> tuple[Array, Array]:
    """Return log p(y | theta) of y = +1 and of y = -1, each (P,) for theta (P,)."""
    return -np.logaddexp(0, -theta), -np.logaddexp(0, theta)


def acceptance(theta: Array, m: int, n: int, c: float, ones: int) -> Array:
    """Return E min(1, exp(c (muhat(theta') - muhat(theta)))) over minibatches of m of n data, (P, P) [from, to].

    `ones` of the n data are +1. With m = n it is the acceptance of the tempered chain.
    """
    plus, minus = log_lik(theta)
    up, down = plus[None] - plus[:, None], minus[None] - minus[:, None]
    law = stats.hypergeom(n, ones, m)
    low, high = (int(law.ppf(q)) for q in (_TAIL, 1 - _TAIL))
    counts = np.arange(low, high + 1)
    total = np.zeros_like(up)
    for share, weight in zip(counts / m, law.pmf(counts), strict=True):
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
    found: Array = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]
    return found


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


def computed(run: Run) -> dict[tuple[float, int], Cell]:
    """Return the cells of a run, (alpha, m) -> cell."""
    return run.once(_computed)


def _computed(run: Run) -> dict[tuple[float, int], Cell]:
    config = run.config
    theta = np.linspace(-config["half"], config["half"], int(config["points"]))
    n = int(config["n"])
    ones = round(config["share"] * n)
    return {
        (float(alpha), int(m)): cell(theta, int(m), n, float(alpha), ones)
        for alpha in config["alphas"]
        for m in config["sizes"]
    }


def slope(sizes: list[int], values: list[float]) -> float:
    """Return the exponent of m, by least squares on logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def metrics(run: Run) -> Metrics:
    """Return what the claims and tables speak of.

    ``kernel.slope_A``: the exponent of m in the kernels' distance at alpha = A, ``kernel.bound_A`` of the bound's
    shape; ``kernel.excess``: the largest difference of the two; ``kernel.over_bound``: the largest distance over the
    bound that the proof ends with. ``stationary.cells``: cells in which epsilon <= eta / 2; ``stationary.over``: the
    largest TV(pi_T, pi_mint) over epsilon / eta in those, NaN if there is none.
    """
    cells, sizes = computed(run), [int(m) for m in run.config["sizes"]]
    found: Metrics = {}
    n = int(run.config["n"])
    excess = []
    for alpha in map(float, run.config["alphas"]):
        shape = [math.sqrt((1 - (m - 1) / n) * math.log(m)) / m ** (0.5 - alpha) for m in sizes]
        own = slope(sizes, [cells[alpha, m].kernel for m in sizes])
        found |= {f"kernel.slope_{alpha:g}": own, f"kernel.bound_{alpha:g}": slope(sizes, shape)}
        excess.append(own - slope(sizes, shape))
    found["kernel.excess"] = max(excess)
    found["kernel.over_bound"] = max(each.kernel / each.bound for each in cells.values())
    ratios = {key: each.stationary * each.eta / each.kernel for key, each in cells.items()}
    within = [ratio for key, ratio in ratios.items() if cells[key].kernel <= cells[key].eta / 2]
    found["stationary.cells"] = float(len(within))
    found["stationary.over"] = max(within, default=math.nan)
    found["stationary.over_all"] = max(ratios.values())
    return found


def kernels(run: Run) -> pd.DataFrame:
    """Distance of MINT's kernel from that of tempered MCMC (Theorem 1), by alpha and m.

    The largest over theta of the total variation distance; below, the exponent of m in it and in the bound's shape,
    sqrt((1 - f_m) log m) / m^(1/2 - alpha).
    """
    found, rows = run.once(metrics), {}
    for alpha in map(float, run.config["alphas"]):
        row = {f"m = {m:,}": computed(run)[alpha, m].kernel for m in run.config["sizes"]}
        row |= {
            "exponent": value(found[f"kernel.slope_{alpha:g}"]),
            "of the bound": value(found[f"kernel.bound_{alpha:g}"]),
        }
        rows[f"alpha = {alpha:g}"] = row
    return pd.DataFrame.from_dict(rows, orient="index")


def stationary(run: Run) -> pd.DataFrame:
    """Distance of MINT's stationary distribution from the tempered one, and its bound epsilon / eta (Theorem 2).

    epsilon: the distance of the kernels, the least that Theorem 1 allows; eta: of Assumption 1. The theorem speaks of
    cells in which epsilon <= eta / 2.
    """
    rows = {
        f"alpha = {alpha:g}, m = {m:,}": {
            "epsilon": each.kernel,
            "eta": each.eta,
            "TV(pi_T, pi_mint)": each.stationary,
            "epsilon / eta": each.kernel / each.eta,
            "condition": "holds" if each.kernel <= each.eta / 2 else "fails",
        }
        for (alpha, m), each in computed(run).items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def bounds(run: Run) -> Figure:
    """MINT against tempered MCMC by minibatch size: kernels (Theorem 1) and stationary distributions (Theorem 2).

    Left: the largest distance of the kernels, a line for each alpha; dashed: the shape of the bound through the first
    point. Right: the distance of the stationary distributions; dashed: epsilon / eta.
    """
    sizes = np.array(run.config["sizes"], dtype=float)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.0, 3.4))
    n = int(run.config["n"])
    for alpha, colour, mark in zip(map(float, run.config["alphas"]), COLOURS, "os^D", strict=False):
        cells = [computed(run)[alpha, int(m)] for m in sizes]
        distances = np.array([each.kernel for each in cells])
        shape = np.sqrt((1 - (sizes - 1) / n) * np.log(sizes)) / sizes ** (0.5 - alpha)
        left.plot(sizes, distances, mark + "-", color=colour, markersize=4, label=rf"$\alpha$ = {alpha:g}")
        left.plot(sizes, distances[0] * shape / shape[0], "--", color=colour, linewidth=0.9)
        right.plot(sizes, [each.stationary for each in cells], mark + "-", color=colour, markersize=4)
        right.plot(sizes, [each.kernel / each.eta for each in cells], "--", color=colour, linewidth=0.9)
    left.set_ylabel("distance of kernels (TV)")
    right.set_ylabel("stationary distributions (TV)")
    for axis in (left, right):
        axis.set(xscale="log", yscale="log", xlabel="minibatch size m")
    figure.tight_layout()
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def notes(run: Run) -> list[str]:
    """Return what a reader should know beside the numbers."""
    found, cells = run.once(metrics), computed(run).values()
    return [
        "The model is a logistic regression without covariates, with uniform proposals on a grid of theta: "
        "log-likelihood "
        "differences are bounded, as Theorem 1 assumes, and the expectation over minibatches is an exact sum over a "
        "hypergeometric count. Both points share the minibatch, as in Algorithm 1 and in the proof.",
        "The bound that the proof ends with exceeds the distance at least "
        f"{1 / value(found['kernel.over_bound']):,.0f} "
        f"times here, and is above 1, where it says nothing, in {sum(each.bound > 1 for each in cells)} of the "
        f"{len(cells)} cells.",
        f"Theorem 2 speaks of {value(found['stationary.cells']):.0f} of the {len(cells)} cells, those with "
        f"epsilon <= eta / 2. Over all cells TV(pi_T, pi_mint) is at most {value(found['stationary.over_all']):.2f} "
        "of epsilon / eta.",
    ]
