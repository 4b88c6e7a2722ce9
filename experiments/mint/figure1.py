"""Figure 1 of Li & Wong (2017): a mixture of Gaussians with tied means, section 4.1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from mhrun.diagnostics.chains import ess, rhat
from mhrun.diagnostics.grid import (
    Estimate,
    Grid,
    chi_squared,
    log_masses,
    monte_carlo_distance,
    total_variation,
)
from mhrun.diagnostics.modes import hits, nearest, ratio
from mhrun.models.compressed import compress
from mhrun.report.run import Run
from mhrun.report.style import COLOURS, GREYS
from mhrun.target import Target

Array = npt.NDArray[np.floating]

RADIUS = 0.01  # the paper's ball about a mode
WIDE = 0.1  # the same with a hundred times the hits
CONCENTRATED = 2000  # effective data beyond which the density is two spikes on any common grid
ORDER = 5  # points a side in a piece as wide as the density's own scale
EXACT = 1e-6  # what probabilities may miss
_STRIP = 10.0  # |theta2| up to where the two components are one lump; beyond, there are two ridges
_REACH = 5.0  # half the width of a ridge
_CHUNK = 1024  # points at once


class Law(NamedTuple):
    """A distribution on cells: those of some grids one after the other, and last all that is outside."""

    grids: Sequence[Grid]
    probability: Array

    def shares(self, draws: Array) -> Array:
        """Return the shares of each chain's draws (C, S, 2) in the cells, (C, cells + 1)."""
        inside = np.concatenate([grid.shares(draws)[:, :-1] for grid in self.grids], axis=1)
        return np.append(inside, 1 - inside.sum(axis=1, keepdims=True), axis=1)

    def maps(self, values: Array) -> list[tuple[Array, Array, Array]]:
        """Return values of the cells (cells + 1,) per area, for each grid with its centres in x and in y."""
        found, at = [], 0
        for grid in self.grids:
            x, y = ((edges[:-1] + edges[1:]) / 2 for edges in grid)
            area = (grid.x[1] - grid.x[0]) * (grid.y[1] - grid.y[0])
            found.append((x, y, values[at : at + len(x) * len(y)].reshape(len(x), len(y)) / area))
            at += len(x) * len(y)
        return found


class Truth:
    """What can be known of a run's target without sampling, by quadrature over theta.

    Sums over the data are exact to about 1e-13 a datum (`mhrun.models.compressed`).
    """

    def __init__(self, target: Target, order: int = ORDER) -> None:
        self.target = target
        self.order = order
        nodes, weights = compress(target.data.fields["x"].numpy(), 0.25, 20)
        self._rows = {"x": torch.from_numpy(nodes)[None]}
        self._shares = torch.from_numpy(weights / target.n)
        self.modes = np.stack([self._mode(start) for start in ((0.0, 1.0), (1.0, -1.0))])
        self._laws: dict[tuple[str, float, int, int], Law | None] = {}
        self._totals: dict[tuple[str, float, int], float | None] = {}

    def moments(self, theta: Array) -> tuple[Array, Array]:
        """Return mean and variance over the data of log p(x | theta) at theta (P, 2)."""
        mean, var = [], []
        for part in torch.from_numpy(theta).split(_CHUNK):
            values = self.target.model.log_lik(part, self._rows)
            mean.append(values @ self._shares)
            var.append(values.sub_(mean[-1][:, None]).square_() @ self._shares)
        return torch.cat(mean).numpy(), torch.cat(var).numpy()

    def log_tempered(self, temperature: float) -> Callable[[Array], Array]:
        """Return the log of the tempered density, (P, 2) -> (P,)."""

        def log_density(theta: Array) -> Array:
            mean, _ = self.moments(theta)
            return self._with_prior(mean, theta, temperature)

        return log_density

    def log_stored(self, temperature: float, m: int) -> Callable[[Array], Array]:
        """Return the log of the law of the chain that stores minibatches, (P, 2) -> (P,).

        c mu + (c sigma)^2 (1 - (m-1)/(n-1)) / 2m: section 3.2's f*, with the factor that drawing
        without replacement brings.
        """
        c, n = self.target.n / temperature, self.target.n
        rest = 1.0 if self.target.replacement or n == 1 else 1 - (m - 1) / (n - 1)

        def log_density(theta: Array) -> Array:
            mean, var = self.moments(theta)
            return self._with_prior(mean + 0.5 * c * var / m * rest, theta, temperature)

        return log_density

    def law(self, kind: str, temperature: float, m: int = 0, cells: int = 40) -> Law | None:
        """Return the cell probabilities of the `tempered` or the `stored` law, or None where it has none.

        At temperatures near 1 the density is two spikes: then the cells are 30 x 30 about each mode.

        Raises:
            ArithmeticError: the cells hold more than there is, which is an error of the quadrature.
        """
        key = (kind, temperature, m, cells)
        if key not in self._laws:
            self._laws[key] = self._law(*key)
        return self._laws[key]

    def _law(self, kind: str, temperature: float, m: int, cells: int) -> Law | None:
        log_density = (
            self.log_tempered(temperature) if kind == "tempered" else self.log_stored(temperature, m)
        )
        if (kind, temperature, m) not in self._totals:
            self._totals[kind, temperature, m] = self._log_total(log_density, temperature)
        total = self._totals[kind, temperature, m]
        if total is None:
            return None
        grids = self._windows(temperature) or [Grid.of((-4.0, -4.0), (4.0, 4.0), cells)]
        scale = self._scale(temperature)
        masses = [log_masses(log_density, grid, self.order, scale) for grid in grids]
        p = np.exp(np.concatenate(masses) - total)
        outside = 1 - p.sum()
        if outside < -EXACT:
            raise ArithmeticError(f"the cells of the {kind} law at T = {temperature:g} sum to {p.sum():.9f}.")
        return Law(grids, np.append(p, max(0.0, outside)))

    def _log_total(self, log_density: Callable[[Array], Array], temperature: float) -> float | None:
        """Return the log of the integral over the plane, or None if the density does not end within reach.

        In u = theta1 + theta2 / 2, the middle of the two components, and theta2 the two modes are mirror
        images. Where |theta2| is large, one component has all the data and the other is free: two ridges
        that only the prior ends, with a good part of the mass at high temperatures.
        """
        a, b = self._scale(temperature, turned=True)
        power = float(self.target.prior_power(torch.tensor(temperature)))
        middle = float(self.modes[0] @ (1.0, 0.5))
        half = _STRIP / 2 + _REACH

        def strip(at: Array) -> Array:
            return log_density(np.stack([at[:, 0] - at[:, 1] / 2, at[:, 1]], axis=1))

        def ridge(at: Array, sign: int, first: bool) -> Array:
            far = sign * np.exp(at[:, 1])
            near = at[:, 0] if first else at[:, 0] - far
            return log_density(np.stack([near, far], axis=1)) + at[:, 1]

        grid = Grid.of((middle - half, -_STRIP), (middle + half, _STRIP), 40)
        parts = [log_masses(strip, grid, self.order, (a, b)).reshape(40, 40)]
        edges = [parts[0][[0, -1]].ravel()]
        end = 8.0 * np.sqrt(self.target.model.prior_variances[1] / power)
        if end > _STRIP:
            low, high = np.log(_STRIP), np.log(end)
            grid = Grid.of((middle - _REACH, low), (middle + _REACH, high), 20)
            for sign in (1, -1):
                for first in (True, False):
                    part = log_masses(
                        lambda at, s=sign, f=first: ridge(at, s, f), grid, self.order, (a, 0.25)
                    )
                    parts.append(part.reshape(20, 20))
                    edges += [parts[-1][[0, -1]].ravel(), parts[-1][:, -1]]
        else:
            edges.append(parts[0][:, [0, -1]].ravel())
        total = float(np.logaddexp.reduce(np.concatenate([part.ravel() for part in parts])))
        return total if np.exp(np.concatenate(edges) - total).sum() < EXACT else None

    def _with_prior(self, mean: Array, theta: Array, temperature: float) -> Array:
        t = torch.as_tensor(temperature, dtype=torch.float64)
        prior = self.target.prior_power(t) * self.target.model.log_prior(torch.from_numpy(theta))
        return self.target.n / temperature * mean + prior.numpy()

    def _scale(self, temperature: float, *, turned: bool = False) -> tuple[float, float]:
        """Return the standard deviations along the two axes (theta1 or, `turned`, u; theta2) at a mode.

        Each is that of a section through the mode, with the other axis held: the narrowest there is.
        """
        narrowest = []
        for mode in self.modes:
            hessian = self._hessian(torch.from_numpy(mode)).numpy()
            axes = np.array([[1.0, -0.5 if turned else 0.0], [0.0, 1.0]])
            narrowest.append(np.sqrt(temperature / -np.diag(axes.T @ hessian @ axes)))
        a, b = np.min(narrowest, axis=0)
        return float(a), float(b)

    def _mode(self, start: tuple[float, float]) -> Array:
        point = torch.tensor(start, dtype=torch.float64)
        for _ in range(20):  # Newton's method
            gradient = torch.autograd.functional.jacobian(self._log_posterior, point)
            point = point - torch.linalg.solve(self._hessian(point), gradient)
        return point.numpy()

    def _hessian(self, point: torch.Tensor) -> torch.Tensor:
        return torch.autograd.functional.hessian(self._log_posterior, point)

    def _log_posterior(self, point: torch.Tensor) -> torch.Tensor:
        theta = point[None]
        mean = self.target.model.log_lik(theta, self._rows)[0] @ self._shares
        return self.target.n * mean + self.target.model.log_prior(theta)[0]

    def _windows(self, temperature: float) -> list[Grid]:
        """Return 30 x 30 cells about each mode, or nothing where these would overlap or the density is broad."""
        if self.target.n / temperature < CONCENTRATED:
            return []
        grids = []
        for mode in self.modes:
            hessian = self._hessian(torch.from_numpy(mode)).numpy()
            sd = np.sqrt(np.diag(np.linalg.inv(-hessian)) * temperature)
            low, high = mode - 6 * sd, mode + 6 * sd
            grids.append(Grid.of((low[0], low[1]), (high[0], high[1]), 30))
        one, two = grids
        apart = any(a[-1] < b[0] or b[-1] < a[0] for a, b in zip(one, two, strict=True))
        return grids if apart else []


def truth(run: Run) -> Truth:
    """Return the truth of a run, computed once."""
    return run.once(_truth)


def _truth(run: Run) -> Truth:
    return Truth(run.target)


def temperature(run: Run, method: str) -> float:
    """Return the temperature that a method samples at."""
    schedules = run.config["methods"][method]["schedules"]
    return float(schedules.get("temperature", {}).get("temperature", 1.0))


def is_tempered(run: Run, method: str) -> bool:
    """Say whether a method samples the tempered density, where the modes are connected."""
    return temperature(run, method) > 1


def own_law(run: Run, method: str) -> Law | None:
    """Return the law that a method's chain has, where it is known."""
    kernel = run.config["methods"][method]["kernel"]
    pairing = kernel.get("pairing", {})
    exact_rule = kernel.get("rule", {}).get("_target_", "").endswith(("Metropolis", "Barker"))
    if not exact_rule or pairing["_target_"].endswith("Shared"):
        return None
    if pairing["_target_"].endswith("Stored"):
        if not kernel["rule"]["_target_"].endswith("Metropolis"):
            return None
        return truth(run).law("stored", temperature(run, method), int(pairing["m"]))
    return truth(run).law("tempered", temperature(run, method))


def metrics(run: Run) -> dict[str, Estimate | float]:
    """Everything of this experiment that a claim or a table speaks of."""
    found: dict[str, Estimate | float] = {}
    for method in run.methods:
        draws = run.draws(method)
        law = truth(run).law("tempered", temperature(run, method))
        shares = law.shares(draws)
        visited = [len(np.unique(row)) for row in nearest(draws, truth(run).modes)]
        single = [total_variation(row[None], law.probability) for row in shares]
        mine: dict[str, Estimate | float] = {
            "ess": min(ess(draws[:, :, d]) for d in range(2)),
            "rhat": max(rhat(draws[:, :, d]) for d in range(2)),
            "tv": total_variation(shares, law.probability),
            "tv_noise": monte_carlo_distance(shares),
            "tv_single_chain": float(np.mean(single)),
            "modes_visited_most": float(max(visited)),
            "upper_share": Estimate(*_mean_and_error((draws[:, :, 1] > 0).mean(axis=1))),
        }
        if run.methods[method]["n_accept_tests"]:
            mine["accept_rate"] = run.methods[method]["accept_rate"]
        if is_tempered(run, method):
            mine["chi2"] = chi_squared(shares, law.probability)
            for name, radius in (("mode_ratio", RADIUS), ("mode_ratio_wide", WIDE)):
                mine[name] = ratio(*(hits(draws, mode, radius).sum(axis=1) for mode in truth(run).modes))
        if (own := own_law(run, method)) is not None:
            mine["tv_own"] = total_variation(own.shares(draws), own.probability)
            if is_tempered(run, method):
                mine["chi2_own"] = chi_squared(own.shares(draws), own.probability)
        found |= {f"{method}.{name}": value for name, value in mine.items()}
    if "mint_stored" in run.methods:
        t, m = temperature(run, "mint_stored"), int(run.config["m"])
        laws = truth(run).law("stored", t, m).probability, truth(run).law("tempered", t).probability
        found["law.tv_stored_tempered"] = float(0.5 * np.abs(laws[0] - laws[1]).sum())
    found["law.posterior_ratio"] = _posterior_ratio(run, 1.0)
    found["law.tempered_ratio"] = _posterior_ratio(run, max(temperature(run, m) for m in run.methods))
    return found


def distances(run: Run) -> pd.DataFrame:
    """How far each sampler is from its density, by quadrature.

    TV is the total variation distance between the histogram of all draws (40 x 40 cells on [-4, 4]^2
    for the tempered density, 30 x 30 about each mode for the posterior) and the exact cell probabilities;
    beside it, what Monte Carlo error alone would show, from the spread over chains. TV of one chain
    tells whether a chain alone finds the density. Chi-squared is estimated without bias from pairs of chains.
    "Own law" is the law that the chain is known to have; for the shared minibatch there is none.
    """
    found = run.once(metrics)
    rows = {}
    for method in run.methods:

        def get(name: str, method: str = method) -> Estimate | float | None:
            return found.get(f"{method}.{name}")

        rows[run.label(method)] = {
            "density": "tempered" if is_tempered(run, method) else "posterior",
            "TV": get("tv"),
            "TV by chance": get("tv_noise"),
            "TV of one chain": get("tv_single_chain"),
            "chi-squared": get("chi2"),
            "TV, own law": get("tv_own"),
            "chi-squared, own law": get("chi2_own"),
            "ESS": get("ess"),
            "R-hat": get("rhat"),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def modes(run: Run) -> pd.DataFrame:
    """What each sampler says of the two modes.

    The ratio of the draws within 0.01 (the paper's radius) and within 0.1 of the two modes, as a ratio of
    summed counts with a jackknife error over chains; the share of draws with theta2 > 0; and the most
    modes that any one chain visited.
    """
    found = run.once(metrics)
    names = {
        "mode ratio, radius 0.01": "mode_ratio",
        "mode ratio, radius 0.1": "mode_ratio_wide",
        "share with theta2 > 0": "upper_share",
        "modes visited by one chain": "modes_visited_most",
        "acceptance": "accept_rate",
    }
    rows = {
        run.label(method): {column: found.get(f"{method}.{name}") for column, name in names.items()}
        for method in run.methods
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def density(run: Run) -> Figure:
    """Draws over the exact tempered density (Figure 1, left).

    Grey: the exact density by quadrature. Coloured lines: the histogram of all draws, at the same levels;
    dots: some of the draws. Crosses: the two modes of the posterior.
    """
    shown = [method for method in run.methods if is_tempered(run, method)]
    figure, axes = plt.subplots(1, len(shown), figsize=(3.3 * len(shown), 3.3), sharey=True, squeeze=False)
    for axis, method, colour in zip(axes[0], shown, COLOURS, strict=False):
        (grid,), exact = truth(run).law("tempered", temperature(run, method), cells=80)
        centres = [(edges[:-1] + edges[1:]) / 2 for edges in (grid.x, grid.y)]
        levels = exact[:-1].max() * np.array([0.05, 0.15, 0.3, 0.5, 0.7, 0.9])
        shades = GREYS(np.linspace(0.15, 0.6, len(levels)))
        axis.contourf(*centres, exact[:-1].reshape(80, 80).T, levels=[*levels, 1.0], colors=shades)
        draws = run.draws(method)
        some = draws.reshape(-1, 2)[:: max(1, draws.size // 2 // 2000)]
        axis.plot(*some.T, ".", color=colour, markersize=1.5, alpha=0.35, markeredgewidth=0)
        seen = grid.shares(draws).mean(axis=0)[:-1].reshape(80, 80)
        axis.contour(*centres, seen.T, levels=levels, colors=colour, linewidths=0.9)
        axis.plot(*truth(run).modes.T, "x", color="black", markersize=5)
        axis.set(title=run.label(method), xlabel=r"$\theta_1$", xlim=(-3.2, 3.2), ylim=(-4, 4))
    axes[0][0].set_ylabel(r"$\theta_2$")
    return figure


def mode_ratio(run: Run) -> Figure:
    """The estimated ratio of the two modes against iterations (Figure 1, right).

    The count of draws within 0.01 of (0, 1) over that of (1, -1), summed over the chains, with one
    standard error; thin: within 0.1. Dashed: the true ratio of the tempered density.
    """
    shown = [method for method in run.methods if is_tempered(run, method)]
    figure, axes = plt.subplots(1, len(shown), figsize=(3.3 * len(shown), 3.0), sharey=True, squeeze=False)
    for axis, method, colour in zip(axes[0], shown, COLOURS, strict=False):
        draws = run.draws(method)
        steps = np.unique(np.geomspace(max(100, draws.shape[1] // 200), draws.shape[1], 24).astype(int))
        for radius, width in ((WIDE, 0.8), (RADIUS, 1.6)):
            counts = [_counts_until(hits(draws, mode, radius), steps) for mode in truth(run).modes]
            seen = [ratio(first, second) for first, second in zip(counts[0].T, counts[1].T, strict=True)]
            value, se = np.array(seen).T
            bold = radius == RADIUS
            axis.plot(
                steps,
                value,
                color=colour,
                linewidth=width,
                alpha=1 if bold else 0.55,
                label=f"radius {radius:g}",
            )
            if bold:
                axis.errorbar(steps, value, se, color=colour, linewidth=0, elinewidth=1, capsize=1.5)
        axis.axhline(
            _posterior_ratio(run, temperature(run, method)), color="black", linestyle="--", linewidth=1
        )
        # The limits are said, not found: a short run may have no draw near a mode, and so no ratio.
        axis.set(xscale="log", xlabel="iterations per chain", title=run.label(method), ylim=(0, 2.5))
        axis.set_xlim(0.9 * steps[0], 1.1 * steps[-1])
    chains = run.methods[shown[0]]["chains"]
    axes[0][0].set_ylabel(f"ratio of the modes ({chains} chains)")
    axes[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def one_mode(run: Run) -> Figure:
    """Every sampler of the posterior at temperature 1 stays where it began.

    theta2 against iterations, one line per chain; chains begin in turn at (0, 1) and at (1, -1).
    MINT beside them, at its own temperature.
    """
    cold = [method for method in run.methods if not is_tempered(run, method)]
    shown = [method for method in run.methods if method == "mint"] + cold
    figure, axes = plt.subplots(1, len(shown), figsize=(2.6 * len(shown), 2.8), sharey=True, squeeze=False)
    for axis, method in zip(axes[0], shown, strict=True):
        draws = run.draws(method)
        every = max(1, draws.shape[1] // 400)
        chains = range(len(draws)) if method in cold else range(1)
        for c in chains:
            colour = COLOURS[c % 2] if method in cold else COLOURS[0]
            axis.plot(
                np.arange(draws.shape[1])[::every],
                draws[c, ::every, 1],
                color=colour,
                linewidth=0.6,
                alpha=0.7,
            )
        axis.set(title=run.label(method), xlabel="iteration", ylim=(-4.5, 4.5))
        axis.xaxis.set_major_locator(MaxNLocator(3))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes[0][0].set_ylabel(r"$\theta_2$")
    return figure


def notes(run: Run) -> list[str]:
    """What a reader should know beside the numbers."""
    found = run.once(metrics)
    c = run.target.n / max(temperature(run, method) for method in run.methods)
    lines = [
        f"The tempered density is worth c = n/T = {c:.4g} data. That is hot: between the two modes it dips by "
        f"{_dip(run):.2g} nats only, so that covering both modes is no feat at this setting; "
        "a sweep over lam shows where it becomes one.",
        "MINT's algorithm as printed scores both points on one fresh minibatch (`mint`); its derivation in "
        "section 3.2 keeps the current point's minibatch (`mint_stored`). They are two chains. The stored one "
        "has a known law, exp(c mu + (c sigma)^2 (1 - (m-1)/(n-1)) / 2m); the shared one has none in closed "
        "form: minibatch noise in the log-ratio makes it a little flatter than the tempered density.",
        f"The printed ratio 1.00 is that of the likelihood, which is the same at both modes. The prior is not: "
        f"the posterior's ratio at T = 1 is {found['law.posterior_ratio']:.4f}, and the tempered density's, which is "
        f"what is sampled, {found['law.tempered_ratio']:.6f} (temper={run.target.temper}).",
        "Full-batch likelihood evaluations are counted as the algorithm makes them, n for each step; they were "
        "computed from some hundred weighted nodes, exact to rounding (`mhrun.models.compressed`).",
    ]
    noisy = [m for m in run.methods if run.methods[m].get("log_ratio_noise_sd")]
    if noisy:
        spread = ", ".join(f"{run.methods[m]['log_ratio_noise_sd']:.2f} for {run.label(m)}" for m in noisy)
        lines.append(
            f"Standard deviation of the log-ratio from minibatch noise, root mean square over steps: {spread}."
        )
    return lines


def _dip(run: Run) -> float:
    """Return the drop in nats from the lower mode to the highest pass between the modes."""
    hottest = max(temperature(run, method) for method in run.methods)
    log_density = truth(run).log_tempered(hottest)
    # The pass is on the line of symmetry, theta2 = 0, where the components are one.
    line = np.stack([np.linspace(-1, 2, 3001), np.zeros(3001)], axis=1)
    return float(log_density(truth(run).modes).min() - log_density(line).max())


def _posterior_ratio(run: Run, at: float) -> float:
    first, second = truth(run).log_tempered(at)(truth(run).modes)
    return float(np.exp(first - second))


def _counts_until(inside: npt.NDArray[np.bool_], steps: npt.NDArray[np.int64]) -> Array:
    edges = np.concatenate([[0], steps[:-1]])
    return (
        np.add.reduceat(inside[:, : steps[-1]].astype(np.int64), edges, axis=1).cumsum(axis=1).astype(float)
    )


def _mean_and_error(by_chain: Array) -> tuple[float, float]:
    return float(by_chain.mean()), float(by_chain.std(ddof=1) / np.sqrt(len(by_chain)))
