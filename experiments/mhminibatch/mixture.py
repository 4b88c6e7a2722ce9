"""Section 6.1 of Seita et al. (2017): what each acceptance test reads, and whether it samples right."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import gammaln

from mhrun.diagnostics.chains import worth
from mhrun.diagnostics.grid import Grid, log_masses
from mhrun.report.metrics import Metrics, MetricTable, estimate
from mhrun.report.plots import panels
from mhrun.report.vocabulary import GREYS, Array, Figure, Run, cached, method_styles

from ..shared.exact import Truth
from ..shared.measures import in_order, of_sizes
from .mnist import design

TESTS = ("mhminibatch_released", "austere", "mhsublhd")
TRIALS = 10  # of the paper's tables
_FEWEST = 5  # trials that a standard error over trials is of
# Table 4, final version: mean and standard deviation of the log score, and of chi-squared.
TABLE_4 = {
    "mhminibatch_released": ((-1307.0, 229.5), (4502.3, 1821.8)),
    "austere": ((-1386.9, 322.4), (5216.9, 3315.8)),
    "mhsublhd": ((-1295.1, 278.0), (3462.3, 1519.5)),
}
PRINTED_MODES = np.array([[0.0, 1.0], [1.0, -1.0]])
NEAR = 0.5  # of a mode
PRINTED = 5000  # what the authors' script rescales counts to
# The script's bins: 0.1 wide, centred on the nodes of [-1.5, 2.5] x [-2.5, 3.0].
BINS = Grid(np.linspace(-1.55, 2.55, 42), np.linspace(-2.55, 3.05, 57))
WIDE = Grid.of((-8.0, -8.0), (8.0, 8.0), 160)


def temperature(run: Run) -> float:
    """Return K."""
    return float(run.config["temperature"])


@cached
def exact(run: Run) -> tuple[Array, Array, Array]:
    """Return the probability of each bin, and means and standard deviations of theta, by quadrature."""
    log_density = Truth(run.target).log_tempered(temperature(run))
    logs = log_masses(log_density, WIDE, 3)
    total = np.logaddexp.reduce(logs)
    mass = np.exp(logs - total).reshape(160, 160)
    centres = [(edges[:-1] + edges[1:]) / 2 for edges in WIDE]
    margins = mass.sum(1), mass.sum(0)
    mean = np.array([margin @ centre for margin, centre in zip(margins, centres, strict=True)])
    square = np.array([margin @ centre**2 for margin, centre in zip(margins, centres, strict=True)])
    bins = np.exp(log_masses(log_density, BINS, 3) - total)
    return bins, mean, np.sqrt(square - mean**2)


def metrics(run: Run) -> Metrics:
    """Return the metrics of the claims and tables."""
    table = MetricTable({"modes.off": float(np.abs(modes(run) - PRINTED_MODES).max())})
    table |= MetricTable.by_method(run, _of_method)
    if all(f"{test}.size" in table for test in TESTS):
        names = {
            name: [f"{test}.{name}" for test in TESTS] for name in ("size", "mean_z", "sd_z", "both_modes")
        }
        numbers = {
            name: [table.number(address) for address in addresses] for name, addresses in names.items()
        }
        shares = [
            count / run.methods[t]["chains"] for t, count in zip(TESTS, numbers["both_modes"], strict=True)
        ]
        table["order.size"] = in_order(table, names["size"])
        table["ratio.next_best"] = min(numbers["size"][1:]) / numbers["size"][0]
        table |= {f"same.{name}": max(numbers[name]) for name in ("mean_z", "sd_z")}
        table["same.both_modes"] = min(shares)
    return table | design(run, "bound")


def _of_method(run: Run, method: str) -> Metrics:
    (_bins, mean, sd), draws = exact(run), run.draws(method)
    scores, plain = (np.array([score(c, run, scripted=s) for c in draws]) for s in (True, False))
    return {
        **of_sizes(run, method),
        "mean_z": _largest_score(draws.mean(axis=1), mean),
        "sd_z": _largest_score(((draws - mean) ** 2).mean(axis=1), sd**2),
        "both_modes": float(_visits(draws, modes(run)).all(axis=1).sum()),
        "ess": worth(draws)["ess"],
        **_scores(method, scores),
        "score": estimate(scores[:, 0]),
        "chi2": estimate(scores[:, 1]),
        "score_printed": estimate(plain[:, 0]),
        "chi2_printed": estimate(plain[:, 1]),
    }


@cached
def modes(run: Run) -> Array:
    """Return the two modes of the tempered posterior (2, 2), by climbing its logarithm from the printed ones."""
    log_density = Truth(run.target).log_tempered(temperature(run))
    return np.stack(
        [
            minimize(lambda theta: -float(log_density(theta[None])[0]), start, method="Nelder-Mead").x
            for start in PRINTED_MODES
        ]
    )


def _visits(draws: Array, at: Array) -> npt.NDArray[np.bool_]:
    """Return whether chains (C, S, 2) came within `NEAR` of each of some points (K, 2): (C, K)."""
    distances = np.linalg.norm(draws[:, :, None] - at, axis=-1)
    visits: npt.NDArray[np.bool_] = (distances < NEAR).any(axis=1)
    return visits


def _largest_score(by_trial: Array, exact: Array) -> float:
    """Return how far the mean over trials (C, D) is from the exact values (D,), in standard errors over trials.

    NaN for fewer than five: that of two normal trials is below a tenth of what it should be with probability 8 %.
    """
    if len(by_trial) < _FEWEST:
        return float("nan")
    error = by_trial.std(axis=0, ddof=1) / np.sqrt(len(by_trial))
    return float(np.abs((by_trial.mean(axis=0) - exact) / error).max())


def _scores(method: str, scores: Array) -> Metrics:
    """Return how far Table 4's two numbers are from the paper's, in standard errors of the difference of two means."""
    if method not in TABLE_4 or len(scores) < 2:
        return {}
    means, variances = scores.mean(axis=0), scores.var(axis=0, ddof=1) / len(scores)
    rows = zip(("score_z", "chi2_z"), means, variances, TABLE_4[method], strict=True)
    return {n: float(abs(mean - p) / np.sqrt(sd**2 / TRIALS + var)) for n, mean, var, (p, sd) in rows}


def score(chain: Array, run: Run, scripted: bool) -> tuple[float, float]:
    """Return equation 40 and chi-squared of the binned draws of one chain (S, 2).

    `scripted`: as the authors' script has it: draws outside go to the edge bins, observed and expected counts
    are rescaled to 5000, and only bins with at least one of each count. Else: as printed, over all bins.
    """
    p = exact(run)[0]
    if scripted:
        low, high = [np.array([edges[i] for edges in BINS]) for i in (0, -1)]
        chain = np.clip(chain, low + 1e-9, high - 1e-9)
    counts = BINS.shares(chain[None])[0, :-1] * len(chain)
    total = PRINTED if scripted else len(chain)
    expected = p * total / (p.sum() if scripted else 1.0)
    counts = counts * total / len(chain)
    used = (counts >= 1) & (expected >= 1) if scripted else expected > 1e-12
    c, e = counts[used], expected[used]
    return float((c * np.log(e) - e - gammaln(c + 1)).sum()), float(((c - e) ** 2 / e).sum())


def scatter(run: Run) -> Figure:
    """The draws of one trial over the exact density (Figure 1)."""
    shown = [method for method in (*TESTS, "mhminibatch", "barker") if method in run.methods]
    figure, axes = panels(
        len(shown),
        size=(2.9, 3.1),
        xlabel=r"$\theta_1$",
        ylabel=r"$\theta_2$",
        xlim=(-1.5, 2.5),
        ylim=(-3, 3),
    )
    grid = Grid.of((-2.0, -3.5), (3.0, 3.5), 80)
    logs = log_masses(Truth(run.target).log_tempered(temperature(run)), grid)
    density = np.exp(logs - logs.max()).reshape(80, 80)
    centres = [(edges[:-1] + edges[1:]) / 2 for edges in grid]
    levels = [0.02, 0.1, 0.25, 0.45, 0.7, 0.9, 1.01]
    shades = GREYS(np.linspace(0.12, 0.55, len(levels) - 1))
    for axis, method in zip(axes, shown, strict=False):
        colour = method_styles(run.methods)[method]["color"]
        axis.contourf(*centres, density.T, levels=levels, colors=shades)
        axis.plot(*run.draws(method)[0].T, ".", color=colour, markersize=2, alpha=0.3, markeredgewidth=0)
        axis.set_title(run.label(method))
    return figure
